// A CUDA device for a CPU-only torch wheel: tensors with device "cuda:i" whose memory is the host's, and whose operators
// run the CPU kernels. It fills torch's empty CUDA dispatch key, so that code written for CUDA runs unmodified.
//
// Like a GPU, it refuses tensors of two devices in one operator, runs out of memory, lets a non-blocking copy to the
// host arrive only when somebody synchronises, and counts what costs time on a GPU: launches, host syncs and copies.
// Unlike a GPU, a kernel has run when its launch returns; only the time that it would take is simulated.

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/ops/_thnn_differentiable_gru_cell_backward.h>
#include <ATen/ops/_thnn_differentiable_lstm_cell_backward.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/histc.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <chrono>
#include <map>
#include <set>
#include <thread>

using namespace c10;
using at::Tensor;

namespace {

constexpr int MOST_DEVICES = 16;
constexpr int GARBAGE = 0xCB;  // what memory holds that nobody has written yet: it should show

std::mutex mutex;
int device_count = 2;
thread_local DeviceIndex current_device = 0;
thread_local StreamId current_streams[MOST_DEVICES] = {};

// ---- What costs time

struct Counters {
  std::atomic<int64_t> launches, implicit_syncs, explicit_syncs, to_device, to_host, on_device, bytes;
  std::atomic<int64_t> bytes_to_device, bytes_to_host;
} counters;

std::atomic<int64_t> kernel_nanoseconds{0}, byte_picoseconds{0};  // how long the device takes
enum SyncMode { ALLOWED = 0, WARNS = 1, FORBIDDEN = 2 };           // as torch.cuda.set_sync_debug_mode
std::atomic<int> sync_mode{ALLOWED};

struct LateCopy { Tensor target, value; };  // what the host may not read yet
struct StreamState { int64_t free_at = 0; std::vector<LateCopy> late; };
std::map<std::pair<int, StreamId>, StreamState> stream_states;

std::string journal;  // the operators that were launched, a line each
bool is_journaling = false;

int64_t now() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

void sleep_until(int64_t time) {
  if (int64_t left = time - now(); left > 0) std::this_thread::sleep_for(std::chrono::nanoseconds(left));
}

void launch(DeviceIndex device, int64_t bytes, const std::string& name) {
  std::lock_guard guard(mutex);
  counters.launches++;
  counters.bytes += bytes;
  auto& state = stream_states[{device, current_streams[device]}];
  state.free_at = std::max(state.free_at, now()) + kernel_nanoseconds + bytes * byte_picoseconds / 1000;
  if (is_journaling) journal += name + "\n";
}

void finish_stream(int device, StreamId stream) {
  std::vector<LateCopy> late;
  int64_t free_at;
  {
    std::lock_guard guard(mutex);
    auto& state = stream_states[{device, stream}];
    late.swap(state.late);
    free_at = state.free_at;
  }
  sleep_until(free_at);
  for (auto& copy : late) copy.target.copy_(copy.value);
}

void sync_implicitly(DeviceIndex device, const std::string& name) {
  counters.implicit_syncs++;
  TORCH_CHECK(sync_mode != FORBIDDEN, "called a synchronizing CUDA operation: ", name);
  if (sync_mode == WARNS) TORCH_WARN("called a synchronizing CUDA operation: ", name);
  finish_stream(device, current_streams[device]);
}

// ---- Memory: the host's, with a capacity

struct Memory { int64_t used = 0, peak = 0, capacity = INT64_MAX; } memories[MOST_DEVICES];

void allocate_bytes(int device, int64_t bytes) {
  std::lock_guard guard(mutex);
  auto& memory = memories[device];
  if (memory.used + bytes > memory.capacity) {
    auto text = "CUDA out of memory. Tried to allocate " + std::to_string(bytes) + " bytes.";
    throw OutOfMemoryError({__func__, __FILE__, __LINE__}, text);
  }
  memory.used += bytes;
  memory.peak = std::max(memory.peak, memory.used);
}

struct Block { void* data; Storage kept; int64_t bytes; int device; };  // its own memory, or a CPU tensor's that it keeps

void free_block(void* context) {
  auto* block = static_cast<Block*>(context);
  std::free(block->data);
  {
    std::lock_guard guard(mutex);
    memories[block->device].used -= block->bytes;
  }
  delete block;
}

struct DeviceMemory final : DeviceAllocator {
  DataPtr allocate(size_t bytes) override {
    Device device(kCUDA, current_device);
    if (!bytes) return DataPtr(nullptr, device);
    allocate_bytes(current_device, bytes);
    void* data = std::malloc(bytes);
    std::memset(data, GARBAGE, bytes);
    return DataPtr(data, new Block{data, Storage(), (int64_t)bytes, current_device}, &free_block, device);
  }
  DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }
  bool initialized() override { return true; }
  void emptyCache(MempoolId_t) override {}
  void recordStream(const DataPtr&, Stream) override {}
  CachingDeviceAllocator::DeviceStats getDeviceStats(DeviceIndex device) override {
    CachingDeviceAllocator::DeviceStats stats;
    stats.allocated_bytes[0].current = memories[device].used;
    stats.allocated_bytes[0].peak = memories[device].peak;
    return stats;
  }
  void resetAccumulatedStats(DeviceIndex) override {}
  void resetPeakStats(DeviceIndex device) override { memories[device].peak = memories[device].used; }
} device_memory;

std::set<const void*> pinned_blocks;

struct PinnedMemory final : Allocator {
  static void release(void* data) {
    {
      std::lock_guard guard(mutex);
      pinned_blocks.erase(data);
    }
    std::free(data);
  }
  DataPtr allocate(size_t bytes) override {
    void* data = std::malloc(std::max<size_t>(bytes, 1));
    std::lock_guard guard(mutex);
    pinned_blocks.insert(data);
    return DataPtr(data, data, &release, Device(kCPU));
  }
  DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }
} pinned_memory;

bool is_pinned(const void* data) {
  std::lock_guard guard(mutex);
  return pinned_blocks.count(data);
}

// ---- Generators: each drives one of the CPU's, so that both devices draw the same numbers

struct DeviceGenerator final : GeneratorImpl {
  at::Generator inner;
  DeviceGenerator(DeviceIndex index, at::Generator made)
      : GeneratorImpl(Device(kCUDA, index), DispatchKeySet(DispatchKey::CUDA)), inner(std::move(made)) {}
  void set_current_seed(uint64_t seed) override { inner.set_current_seed(seed); }
  uint64_t current_seed() const override { return inner.current_seed(); }
  uint64_t seed() override { return inner.seed(); }
  void set_offset(uint64_t) override {}
  uint64_t get_offset() const override { return 0; }
  void set_state(const TensorImpl& state) override { inner.unsafeGetGeneratorImpl()->set_state(state); }
  intrusive_ptr<TensorImpl> get_state() const override { return inner.unsafeGetGeneratorImpl()->get_state(); }
  GeneratorImpl* clone_impl() const override { return new DeviceGenerator(device().index(), inner.clone()); }
  static DeviceType device_type() { return kCUDA; }
};

at::Generator new_generator(DeviceIndex index) {
  return at::make_generator<DeviceGenerator>(index, at::detail::createCPUGenerator());
}

at::Generator& default_generator(DeviceIndex index) {
  static std::vector<at::Generator> all = [] {
    std::vector<at::Generator> made;
    for (int device = 0; device < MOST_DEVICES; device++) made.push_back(new_generator(device));
    return made;
  }();
  return all.at(index < 0 ? current_device : index);
}

at::Generator inner_of(const at::Generator& generator) {
  return static_cast<DeviceGenerator*>(generator.unsafeGetGeneratorImpl())->inner;
}

bool hands_out_defaults = false;  // instead of new generators, while Python asks for the default ones

// ---- Devices, streams and events

struct DeviceEvent { int device; StreamId stream; int64_t ready_at; };

struct DeviceGuardImpl final : impl::DeviceGuardImplInterface {
  DeviceType type() const override { return kCUDA; }
  DeviceIndex deviceCount() const noexcept override { return device_count; }
  Device getDevice() const override { return Device(kCUDA, current_device); }
  void setDevice(Device device) const override {
    TORCH_CHECK(device.index() >= 0 && device.index() < device_count, "CUDA error: invalid device ordinal");
    current_device = device.index();
  }
  void uncheckedSetDevice(Device device) const noexcept override { current_device = device.index(); }
  Device exchangeDevice(Device device) const override {
    Device before = getDevice();
    setDevice(device);
    return before;
  }

  static DeviceIndex index_of(Device device) { return device.has_index() ? device.index() : current_device; }
  static Stream stream(DeviceIndex device, StreamId id) { return Stream(Stream::UNSAFE, Device(kCUDA, device), id); }
  Stream getStream(Device device) const override {
    return stream(index_of(device), current_streams[index_of(device)]);
  }
  Stream getDefaultStream(Device device) const override { return stream(index_of(device), 0); }
  Stream getStreamFromGlobalPool(Device device, bool) const override { return getNewStream(device); }
  Stream getNewStream(Device device, int = 0) const override {
    static std::atomic<StreamId> next{1};
    return stream(index_of(device), next++);
  }
  Stream exchangeStream(Stream next) const override {
    return stream(next.device_index(), std::exchange(current_streams[next.device_index()], next.id()));
  }

  void record(void** event, const Stream& on, DeviceIndex, EventFlag) const override {
    if (!*event) *event = new DeviceEvent{};
    std::lock_guard guard(mutex);
    auto ready_at = std::max(now(), stream_states[{on.device_index(), on.id()}].free_at);
    *static_cast<DeviceEvent*>(*event) = {on.device_index(), on.id(), ready_at};
  }
  void block(void* event, const Stream& on) const override {
    if (!event) return;
    std::lock_guard guard(mutex);
    auto& state = stream_states[{on.device_index(), on.id()}];
    state.free_at = std::max(state.free_at, static_cast<DeviceEvent*>(event)->ready_at);
  }
  bool queryEvent(void* event) const override { return !event || static_cast<DeviceEvent*>(event)->ready_at <= now(); }
  void destroyEvent(void* event, DeviceIndex) const noexcept override { delete static_cast<DeviceEvent*>(event); }
  double elapsedTime(void* begin, void* end, DeviceIndex) const override {
    return (static_cast<DeviceEvent*>(end)->ready_at - static_cast<DeviceEvent*>(begin)->ready_at) / 1e6;
  }

  bool queryStream(const Stream& of) const override {
    std::lock_guard guard(mutex);
    return stream_states[{of.device_index(), of.id()}].free_at <= now();
  }
  void synchronizeStream(const Stream& of) const override {
    counters.explicit_syncs++;
    finish_stream(of.device_index(), of.id());
  }
  void synchronizeEvent(void* event) const override {
    counters.explicit_syncs++;
    if (!event) return;
    auto* recorded = static_cast<DeviceEvent*>(event);
    sleep_until(recorded->ready_at);
    finish_stream(recorded->device, recorded->stream);
  }
  void synchronizeDevice(DeviceIndex device) const override {
    counters.explicit_syncs++;
    std::vector<StreamId> all;
    {
      std::lock_guard guard(mutex);
      for (auto& [key, state] : stream_states)
        if (key.first == device) all.push_back(key.second);
    }
    for (auto id : all) finish_stream(device, id);
  }
};
C10_REGISTER_GUARD_IMPL(CUDA, DeviceGuardImpl)

} // namespace

namespace at {
struct DeviceHooks final : CUDAHooksInterface {
  DeviceHooks(CUDAHooksArgs) {}
  void init() const override {}
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasCUDA() const override { return true; }
  bool hasCUDART() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex deviceCount() const override { return device_count; }
  int getNumGPUs() const override { return device_count; }
  DeviceIndex current_device() const override { return ::current_device; }
  DeviceIndex getCurrentDevice() const override { return ::current_device; }
  void setCurrentDevice(DeviceIndex device) const override { ::current_device = device; }
  DeviceIndex exchangeDevice(DeviceIndex device) const override { return std::exchange(::current_device, device); }
  DeviceIndex maybeExchangeDevice(DeviceIndex device) const override { return std::exchange(::current_device, device); }
  bool isPinnedPtr(const void* data) const override { return ::is_pinned(data); }
  Allocator* getPinnedMemoryAllocator() const override { return &pinned_memory; }
  Allocator* getCUDADeviceAllocator() const override { return &device_memory; }
  Device getDeviceFromPtr(void*) const override { return Device(kCUDA, ::current_device); }
  const Generator& getDefaultGenerator(DeviceIndex index) const override { return default_generator(index); }
  Generator getNewGenerator(DeviceIndex index) const override {
    return hands_out_defaults ? default_generator(index) : new_generator(index < 0 ? ::current_device : index);
  }
  void deviceSynchronize(DeviceIndex device) const override { DeviceGuardImpl().synchronizeDevice(device); }
};
C10_REGISTER_CLASS(CUDAHooksRegistry, CUDAHooks, DeviceHooks)
} // namespace at

namespace {

// ---- The same memory under the other device's name

Tensor as_cpu(const Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_cuda()) return tensor;
  auto storage = make_intrusive<StorageImpl>(
      StorageImpl::use_byte_size_t(), tensor.storage().nbytes(),
      DataPtr(const_cast<void*>(tensor.storage().data()), Device(kCPU)), nullptr, false);
  auto view = at::detail::make_tensor<TensorImpl>(Storage(storage), DispatchKeySet(DispatchKey::CPU), tensor.dtype());
  auto* impl = view.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) impl->set_wrapped_number(true);
  view._set_conj(tensor.is_conj());
  view._set_neg(tensor.is_neg());
  return view;
}

Storage on_device(const Storage& storage, DeviceIndex device) {
  allocate_bytes(device, storage.nbytes());
  auto* block = new Block{nullptr, storage, (int64_t)storage.nbytes(), device};
  DataPtr data(const_cast<void*>(storage.data()), block, &free_block, Device(kCUDA, device));
  return Storage(make_intrusive<StorageImpl>(
      StorageImpl::use_byte_size_t(), storage.nbytes(), std::move(data), &device_memory, true));
}

Tensor as_cuda(const Tensor& tensor, DeviceIndex device) {
  if (!tensor.defined() || tensor.is_cuda()) return tensor;
  auto made = at::detail::make_tensor<TensorImpl>(
      on_device(tensor.storage(), device), DispatchKeySet(DispatchKey::CUDA), tensor.dtype());
  made.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  return made;
}

/// What an empty ``out=`` tensor has become on the CPU.
void become(const Tensor& target, const Tensor& made, DeviceIndex device) {
  target.unsafeGetTensorImpl()->set_storage_keep_dtype(on_device(made.storage(), device));
  target.unsafeGetTensorImpl()->set_sizes_and_strides(made.sizes(), made.strides(), made.storage_offset());
}

// ---- Every operator: with its tensors under the CPU's name, by the CPU's kernel

template <class Function> void for_each_tensor(const IValue& value, Function function) {
  if (value.isTensor()) function(value.toTensor());
  else if (value.isTensorList()) for (const Tensor& tensor : value.toTensorVector()) function(tensor);
  else if (value.isList()) for (const IValue& item : value.toListRef()) for_each_tensor(item, function);
}

IValue mapped(const IValue& value, const std::function<Tensor(const Tensor&)>& function) {
  if (value.isTensor()) return function(value.toTensor());
  if (value.isTensorList()) {
    List<Tensor> all;
    for (const Tensor& tensor : value.toTensorVector()) all.push_back(function(tensor));
    return all;
  }
  if (value.isOptionalTensorList()) {
    List<std::optional<Tensor>> all;
    for (const IValue& item : value.toListRef())
      all.push_back(item.isTensor() ? std::optional<Tensor>(function(item.toTensor())) : std::nullopt);
    return all;
  }
  return value;
}

const std::set<std::string> LABELS_ONLY = {
    "aten::is_set_to", "aten::set_", "aten::_has_compatible_shallow_copy_type", "aten::record_stream"};
const std::set<std::string> MIX_DEVICES = {  // indices may be the host's
    "aten::index", "aten::index_put_", "aten::_index_put_impl_", "aten::_unsafe_index", "aten::bincount",
    "aten::_pack_padded_sequence"};
const std::set<std::string> SYNCHRONIZE = {  // the host needs their result, or its size
    "aten::_local_scalar_dense", "aten::equal", "aten::nonzero", "aten::masked_select", "aten::_unique2",
    "aten::unique_dim", "aten::unique_consecutive", "aten::repeat_interleave", "aten::bincount"};

/// Where an operator runs. Tensors of two devices are refused, as on a GPU.
Device device_of(const std::vector<IValue>& arguments, const std::string& name, int64_t& bytes) {
  std::optional<Device> device;
  std::string other;
  for (auto& value : arguments)
    for_each_tensor(value, [&](const Tensor& tensor) {
      if (!tensor.defined()) return;
      if (!tensor.is_cuda()) {
        if (tensor.dim() && !MIX_DEVICES.count(name)) other = "cpu";
        return;
      }
      if (device && *device != tensor.device()) other = tensor.device().str();
      if (!device) device = tensor.device();
      bytes += tensor.nbytes();
    });
  for (auto& value : arguments)
    if (!device && value.isDevice() && value.toDevice().is_cuda()) device = value.toDevice();
  if (!device || !device->has_index()) device = Device(kCUDA, current_device);
  TORCH_CHECK(
      other.empty(), "Expected all tensors to be on the same device, but found at least two devices, ", *device,
      " and ", other, "! (in ", name, ")");
  return *device;
}

bool is_view(const FunctionSchema& schema) {
  for (auto& returned : schema.returns())
    if (returned.alias_info() && !returned.alias_info()->isWrite()) return true;
  return false;
}

void run_on_cpu(const OperatorHandle& op, DispatchKeySet, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  const auto& name = schema.name();
  if (is_view(schema) || LABELS_ONLY.count(name)) {
    op.redispatchBoxed(DispatchKeySet(DispatchKey::CPU), stack);
    return;
  }
  const size_t count = schema.arguments().size();
  std::vector<IValue> arguments(stack->end() - count, stack->end());
  int64_t bytes = 0;
  const DeviceIndex device = device_of(arguments, name, bytes).index();
  launch(device, bytes, op.operator_name().name + "." + op.operator_name().overload_name);
  if (SYNCHRONIZE.count(name)) sync_implicitly(device, name);

  std::vector<std::pair<Tensor, Tensor>> empty_outputs;
  for (size_t i = 0; i < count; i++) {
    auto& declared = schema.arguments()[i];
    auto& value = (*stack)[stack->size() - count + i];
    if (value.isDevice()) {
      value = Device(kCPU);
    } else if (value.isGenerator() && value.toGenerator().device().is_cuda()) {
      value = inner_of(value.toGenerator());
    } else if (declared.name() == "generator" && value.isNone()) {
      value = inner_of(default_generator(device));
    } else if (declared.is_out() && value.isTensor() && value.toTensor().defined() && !value.toTensor().numel()) {
      empty_outputs.emplace_back(value.toTensor(), at::empty({0}, value.toTensor().options().device(kCPU)));
      value = empty_outputs.back().second;
    } else {
      value = mapped(value, as_cpu);
    }
  }
  if (name == "aten::native_dropout") {  // it takes no generator, and draws from the device's own all the same
    auto host = at::detail::getDefaultCPUGenerator(), own = inner_of(default_generator(device));
    auto kept = host.get_state();
    host.set_state(own.get_state());
    op.callBoxed(stack);
    own.set_state(host.get_state());
    host.set_state(kept);
  } else {
    op.callBoxed(stack);
  }
  for (auto& [target, made] : empty_outputs)
    if (made.numel()) become(target, made, device);

  const size_t returns = schema.returns().size();
  for (size_t r = 0; r < returns; r++) {
    auto& value = (*stack)[stack->size() - returns + r];
    auto* alias = schema.returns()[r].alias_info();
    if (!alias) {
      value = mapped(value, [&](const Tensor& tensor) { return as_cuda(tensor, device); });
      continue;
    }
    for (size_t i = 0; i < count; i++)  // written in place: the very tensor that came in
      if (auto* from = schema.arguments()[i].alias_info(); from && from->beforeSets() == alias->beforeSets())
        value = arguments[i];
  }
}

// ---- What has no CPU kernel to stand for it

Device chosen(std::optional<Device> device) {
  return device && device->has_index() ? *device : Device(kCUDA, current_device);
}

Tensor empty_memory_format(
    IntArrayRef size, std::optional<ScalarType> type, std::optional<Layout>, std::optional<Device> device,
    std::optional<bool>, std::optional<MemoryFormat> format) {
  DeviceGuard guard(chosen(device));
  return at::detail::empty_generic(
      size, &device_memory, DispatchKeySet(DispatchKey::CUDA), dtype_or_default(type), format);
}

Tensor empty_strided(
    IntArrayRef size, IntArrayRef stride, std::optional<ScalarType> type, std::optional<Layout>,
    std::optional<Device> device, std::optional<bool>) {
  DeviceGuard guard(chosen(device));
  return at::detail::empty_strided_generic(
      size, stride, &device_memory, DispatchKeySet(DispatchKey::CUDA), dtype_or_default(type));
}

Tensor& copy_(Tensor& target, const Tensor& source, bool non_blocking) {
  if (!target.numel()) return target;
  const auto device = (target.is_cuda() ? target : source).device().index();
  launch(device, target.nbytes(), "aten::copy_.");
  auto to = as_cpu(target), from = as_cpu(source);
  if (target.is_cuda() && source.is_cuda()) {
    counters.on_device++;
    to.copy_(from);
    return target;
  }
  const bool to_host = !target.is_cuda();
  (to_host ? counters.to_host : counters.to_device)++;
  (to_host ? counters.bytes_to_host : counters.bytes_to_device) += target.nbytes();
  if (to_host && non_blocking && is_pinned(target.storage().data())) {  // it arrives when somebody synchronises
    Tensor value = at::empty(to.sizes(), to.options()).copy_(from);
    std::memset(to.data_ptr(), GARBAGE, to.nbytes());
    std::lock_guard guard(mutex);
    stream_states[{device, current_streams[device]}].late.push_back({to, value});
    return target;
  }
  const bool from_pinned = !to_host && non_blocking && is_pinned(source.storage().data());
  if (!from_pinned) sync_implicitly(device, "aten::copy_");
  to.copy_(from);
  return target;
}

const Tensor& resize_(const Tensor& tensor, IntArrayRef size, std::optional<MemoryFormat>) {
  auto* impl = tensor.unsafeGetTensorImpl();
  impl->set_sizes_contiguous(size);
  const size_t needed = (impl->numel() + impl->storage_offset()) * impl->itemsize();
  auto* storage = impl->unsafe_storage().unsafeGetStorageImpl();
  if (needed > storage->nbytes()) {
    DeviceGuard guard(tensor.device());
    auto grown = device_memory.allocate(needed);
    if (storage->data()) std::memcpy(grown.get(), storage->data(), storage->nbytes());
    storage->set_data_ptr_noswap(std::move(grown));
    storage->set_nbytes(needed);
  }
  return tensor;
}

int64_t no_fused_attention(
    const Tensor&, const Tensor&, const Tensor&, const std::optional<Tensor>&, double, bool, std::optional<double>,
    bool) {
  return 0;
}

// Cells of recurrent layers, which only a GPU has as kernels. The workspace is theirs alone: it holds what the CPU's own
// gradients are computed from.

using Cells = std::tuple<Tensor, Tensor, Tensor>;
using MaybeTensor = std::optional<Tensor>;

Tensor with_bias(const Tensor& gates, const MaybeTensor& bias) {
  return bias && bias->defined() ? as_cpu(gates) + as_cpu(*bias) : as_cpu(gates).clone();
}

DeviceIndex launched_on(const Tensor& tensor, const char* name) {
  launch(tensor.device().index(), tensor.nbytes(), name);
  return tensor.device().index();
}

Cells lstm_cell(
    const Tensor& input, const Tensor& hidden, const Tensor& cell, const MaybeTensor& bias, const MaybeTensor& other) {
  const auto device = launched_on(input, "aten::_thnn_fused_lstm_cell.");
  auto sums = with_bias(input, bias) + with_bias(hidden, other);
  auto gates = sums.chunk(4, 1);  // of input, of what is forgotten, the new one, of output
  auto next = gates[1].sigmoid() * as_cpu(cell) + gates[0].sigmoid() * gates[2].tanh();
  auto shown = gates[3].sigmoid() * next.tanh();
  return {as_cuda(shown, device), as_cuda(next, device), as_cuda(sums, device)};
}

Cells lstm_cell_backward(
    const MaybeTensor& shown, const MaybeTensor& next, const Tensor& cell, const Tensor& after, const Tensor& workspace,
    bool has_bias) {
  const auto device = launched_on(workspace, "aten::_thnn_fused_lstm_cell_backward_impl.");
  auto on_cpu = [](const MaybeTensor& given) { return given ? MaybeTensor(as_cpu(*given)) : given; };
  auto sums = as_cpu(workspace);
  auto [gates, same, before, none, neither] = at::_thnn_differentiable_lstm_cell_backward(
      on_cpu(shown), on_cpu(next), sums, at::zeros_like(sums), {}, {}, as_cpu(cell), as_cpu(after));
  auto bias = has_bias ? as_cuda(gates.sum(0), device) : Tensor();
  return {as_cuda(gates, device), as_cuda(before, device), bias};
}

std::tuple<Tensor, Tensor> gru_cell(
    const Tensor& input, const Tensor& hidden, const Tensor& state, const MaybeTensor& bias, const MaybeTensor& other) {
  const auto device = launched_on(input, "aten::_thnn_fused_gru_cell.");
  auto from_input = with_bias(input, bias), from_hidden = with_bias(hidden, other), before = as_cpu(state);
  auto in = from_input.chunk(3, 1), own = from_hidden.chunk(3, 1);  // of what is reset, of what is kept, the new one
  auto next = (in[2] + (in[0] + own[0]).sigmoid() * own[2]).tanh();
  auto after = next + (in[1] + own[1]).sigmoid() * (before - next);
  return {as_cuda(after, device), as_cuda(at::cat({from_input, from_hidden, before}, 1), device)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> gru_cell_backward(
    const Tensor& after, const Tensor& workspace, bool has_bias) {
  const auto device = launched_on(workspace, "aten::_thnn_fused_gru_cell_backward.");
  const auto size = after.size(1);
  auto parts = as_cpu(workspace).split_with_sizes({3 * size, 3 * size, size}, 1);
  auto [input, hidden, before, none, neither] =
      at::_thnn_differentiable_gru_cell_backward(as_cpu(after), parts[0], parts[1], parts[2], {}, {});
  auto bias = has_bias ? as_cuda(input.sum(0), device) : Tensor();
  auto other = has_bias ? as_cuda(hidden.sum(0), device) : Tensor();
  return {as_cuda(input, device), as_cuda(hidden, device), as_cuda(before, device), bias, other};
}

/// Memory is free as soon as nobody holds it: kernels run as they are launched.
void record_stream(Tensor&, Stream) {}

/// The CPU counts floating-point numbers alone.
Tensor histc(const Tensor& numbers, int64_t bins, const Scalar& least, const Scalar& most) {
  const auto device = launched_on(numbers, "aten::histc.");
  auto counts = at::histc(as_cpu(numbers).to(kDouble), bins, least, most);
  return as_cuda(counts.to(numbers.scalar_type()), device);
}

/// One kernel on a GPU, although torch could put it together from others.
bool is_one_kernel(const std::string& base) {
  static const std::set<std::string> whole = {
      "convolution", "convolution_backward", "native_layer_norm", "native_group_norm", "mse_loss", "smooth_l1_loss",
      "silu_backward", "mish_backward"};
  return base.rfind("_foreach_", 0) == 0 || base.rfind("_amp_", 0) == 0 || whole.count(base);
}

TORCH_LIBRARY_IMPL(aten, CUDA, library) {
  library.impl("empty.memory_format", empty_memory_format);
  library.impl("empty_strided", empty_strided);
  library.impl("copy_", copy_);
  library.impl("resize_", resize_);
  library.impl("_fused_sdp_choice", no_fused_attention);
  library.impl("record_stream", record_stream);
  library.impl("histc", histc);
  library.impl("_thnn_fused_lstm_cell", lstm_cell);
  library.impl("_thnn_fused_lstm_cell_backward_impl", lstm_cell_backward);
  library.impl("_thnn_fused_gru_cell", gru_cell);
  library.impl("_thnn_fused_gru_cell_backward", gru_cell_backward);
  for (auto& op : Dispatcher::singleton().getAllOpNames()) {
    if (op.name.rfind("aten::", 0) != 0 || op.overload_name.find("out") != std::string::npos) continue;
    const auto base = op.name.substr(6);
    if (!is_one_kernel(base)) continue;
    if (Dispatcher::singleton().findOp(op)->hasKernelForDispatchKey(DispatchKey::CUDA)) continue;
    const auto full = base + (op.overload_name.empty() ? "" : "." + op.overload_name);
    library.impl(full.c_str(), torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>());
  }
}

TORCH_LIBRARY_IMPL(_, CUDA, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>());
}

struct Start {
  Start() {
    SetAllocator(kCUDA, &device_memory, 1);
    if (auto* count = std::getenv("FAKECUDA_DEVICES")) device_count = std::atoi(count);
  }
} start;

} // namespace

// ---- For Python

extern "C" {
void fakecuda_counts(int64_t* out) {
  out[0] = counters.launches;
  out[1] = counters.implicit_syncs;
  out[2] = counters.explicit_syncs;
  out[3] = counters.to_device;
  out[4] = counters.to_host;
  out[5] = counters.on_device;
  out[6] = counters.bytes;
  out[7] = counters.bytes_to_device;
  out[8] = counters.bytes_to_host;
}
void fakecuda_pace(int64_t nanoseconds, int64_t picoseconds) {
  kernel_nanoseconds = nanoseconds;
  byte_picoseconds = picoseconds;
}
void fakecuda_catch_up() {
  std::lock_guard guard(mutex);
  for (auto& [_, state] : stream_states) state.free_at = std::min(state.free_at, now());
}
void fakecuda_set_sync_mode(int mode) { sync_mode = mode; }
int fakecuda_sync_mode() { return sync_mode; }
int fakecuda_device_count() { return device_count; }
int fakecuda_current_device() { return current_device; }
void fakecuda_set_device(int device) { current_device = device; }
void fakecuda_memory(int device, int64_t* out) {
  out[0] = memories[device].used;
  out[1] = memories[device].peak;
  out[2] = memories[device].capacity;
}
void fakecuda_reset_peak(int device) { memories[device].peak = memories[device].used; }
void fakecuda_set_capacity(int device, int64_t bytes) { memories[device].capacity = bytes; }
void fakecuda_hand_out_defaults(int on) { hands_out_defaults = on; }
void fakecuda_start_journal(int on) {
  std::lock_guard guard(mutex);
  is_journaling = on;
  journal.clear();
}
const char* fakecuda_journal() { return journal.c_str(); }
}
