/* The two inner loops of the exact reduction, fused so that each gradient is read once.
 *
 * Plain IEEE arithmetic in a fixed order: built with -ffp-contract=off, these give the same bits on every
 * instruction set, and the same bits as the torch version in accumulate.py.
 */
#include <stdint.h>
#include <string.h>

#define LANES 4096 /* the partial sums of squares; accumulate.py names the same number */
#define BLOCK 256

/* accumulator (+)= gradient rounded to the grid of `constant`. Raises *peak to the largest finite |gradient|, as the bits
 * of a double, and returns whether a value was not finite. Sum and peak in one pass: in two, the memory would idle in
 * one. */
#define DEFINE_ADD(NAME, FLOAT, BITS, MAGNITUDE, INFINITE_BITS)                                                     \
    int NAME(const FLOAT *restrict gradient, double *restrict accumulator, int64_t n, double constant, int first,   \
             int64_t *peak)                                                                                         \
    {                                                                                                               \
        BITS bits, largest = 0;                                                                                     \
        FLOAT magnitude;                                                                                            \
        volatile double opaque = constant; /* keeps the compiler from folding (x + C) - C */                        \
        const double C = opaque;                                                                                    \
        for (int64_t i = 0; i < n; i++) {                                                                           \
            memcpy(&bits, gradient + i, sizeof bits);                                                               \
            bits &= MAGNITUDE;                                                                                      \
            largest = bits > largest ? bits : largest;                                                              \
            accumulator[i] = (first ? 0.0 : accumulator[i]) + (((double)gradient[i] + C) - C);                      \
        }                                                                                                           \
        const int unclean = largest >= INFINITE_BITS;                                                               \
        if (unclean)                                                                                                \
            largest = 0;                                                                                            \
        for (int64_t i = 0; unclean && i < n; i++) {                                                                \
            memcpy(&bits, gradient + i, sizeof bits);                                                               \
            bits &= MAGNITUDE;                                                                                      \
            largest = bits > largest && bits < INFINITE_BITS ? bits : largest;                                      \
        }                                                                                                           \
        memcpy(&magnitude, &largest, sizeof magnitude);                                                             \
        const double widened = magnitude;                                                                           \
        int64_t found;                                                                                              \
        memcpy(&found, &widened, sizeof found);                                                                     \
        *peak = found > *peak ? found : *peak;                                                                      \
        return unclean;                                                                                             \
    }

DEFINE_ADD(vf_add_float, float, int32_t, 0x7fffffff, 0x7f800000)
DEFINE_ADD(vf_add_double, double, int64_t, 0x7fffffffffffffffLL, 0x7ff0000000000000LL)

/* Divides the sums by `weight` and leaves float32 results in the first half of the same memory.
 * lanes[i % LANES] += result[i]**2. NaNs become the canonical one. */
void vf_finish_float(double *accumulator, int64_t n, double weight, double *restrict lanes)
{
    float results[BLOCK];
    for (int64_t start = 0; start < n; start += BLOCK) {
        const int64_t count = start + BLOCK < n ? BLOCK : n - start;
        const double *restrict sums = accumulator + start;
        double *restrict squares = lanes + start % LANES;
        for (int64_t i = 0; i < count; i++) {
            const float quotient = (float)(sums[i] / weight);
            results[i] = quotient == quotient ? quotient : __builtin_nanf("");
        }
        for (int64_t i = 0; i < count; i++)
            squares[i] += (double)results[i] * (double)results[i];
        memcpy((char *)accumulator + start * sizeof(float), results, count * sizeof(float));
    }
}
