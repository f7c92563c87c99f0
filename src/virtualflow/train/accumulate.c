/* The inner loops of the exact reduction, fused so that each gradient is read once.
 *
 * Plain IEEE arithmetic in a fixed order: built with -ffp-contract=off, these give the same bits on every
 * instruction set, and the same bits as the torch version in accumulate.py.
 */
#include <stdint.h>
#include <string.h>

#define LANES 4096 /* the length of a row of squares; square_tree.py names the same number */

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

/* `tree` adds up rows of LANES squares by pairs: a row joins another of as many rows, and so on. As a binary counter does,
 * its level k is in use where bit k of `rows` is set. Any kernel can keep that order, which a running sum would not allow.
 * `row` is the sum of 2**level rows that come next. */
static void push(double *restrict row, int level, double *tree, int64_t *rows)
{
    double *branch = tree + level * LANES;
    for (int64_t carry = *rows >> level; carry & 1; carry >>= 1, branch += LANES)
        for (int64_t i = 0; i < LANES; i++)
            row[i] = branch[i] + row[i];
    memcpy(branch, row, LANES * sizeof(double));
    *rows += (int64_t)1 << level;
}

static void push_squares(const float *results, int64_t count, double *tree, int64_t *rows)
{
    double squares[LANES];
#define SQUARE(I) ((double)results[I] * (double)results[I])
    if (count == 4 * LANES && *rows % 4 == 0) {
        for (int64_t i = 0; i < LANES; i++)
            squares[i] = (SQUARE(i) + SQUARE(LANES + i)) + (SQUARE(2 * LANES + i) + SQUARE(3 * LANES + i));
        push(squares, 2, tree, rows);
        return;
    }
    for (; count > 0; count -= LANES, results += LANES) {
        const int64_t here = count < LANES ? count : LANES;
        for (int64_t i = 0; i < here; i++)
            squares[i] = SQUARE(i);
        memset(squares + here, 0, (LANES - here) * sizeof(double));
        push(squares, 0, tree, rows);
    }
#undef SQUARE
}

/* Divides the sums by `weight`, leaves float32 results in the first half of the same memory, and adds their squares to the
 * tree unless it is NULL. NaNs become the canonical one. */
void vf_finish_float(double *accumulator, int64_t n, double weight, double *tree, int64_t *rows)
{
    float results[4 * LANES];
    int64_t count;
    for (int64_t start = 0; start < n; start += count) {
        /* Four rows at once as soon as they are a branch of the tree: then it costs little. */
        const int64_t most = tree != NULL && *rows % 4 == 0 && n - start >= 4 * LANES ? 4 * LANES : LANES;
        const double *restrict sums = accumulator + start;
        count = start + most < n ? most : n - start;
        for (int64_t i = 0; i < count; i++) {
            const float quotient = (float)(sums[i] / weight);
            results[i] = quotient == quotient ? quotient : __builtin_nanf("");
        }
        if (tree != NULL)
            push_squares(results, count, tree, rows);
        memcpy((char *)accumulator + start * sizeof(float), results, count * sizeof(float));
    }
}

/* The same for results that stay float64. */
void vf_finish_double(double *accumulator, int64_t n, double weight, double *tree, int64_t *rows)
{
    double squares[LANES];
    for (int64_t start = 0; start < n; start += LANES) {
        const int64_t count = start + LANES < n ? LANES : n - start;
        double *restrict results = accumulator + start;
        for (int64_t i = 0; i < count; i++) {
            const double quotient = results[i] / weight;
            results[i] = quotient == quotient ? quotient : __builtin_nan("");
        }
        if (tree != NULL) {
            for (int64_t i = 0; i < count; i++)
                squares[i] = results[i] * results[i];
            memset(squares + count, 0, (LANES - count) * sizeof(double));
            push(squares, 0, tree, rows);
        }
    }
}

/* The checksum of `values` rounded to the grid of `constant`: each is a whole number of spacings (it is multiplied by `one`
 * and `other`, whose product is 1 / spacing), times an odd weight that grows with its place, modulo 2**64. So the checksums
 * of addends add up to that of their sum, and one bit, or the same bit of two values, can't change without changing it. */
#define MAGIC_BITS UINT64_C(0x4338000000000000) /* of 0x1.8p52 */
#define DEFINE_CHECKSUM(NAME, FLOAT)                                                                                \
    uint64_t NAME(const FLOAT *restrict values, int64_t n, double constant, double one, double other)               \
    {                                                                                                               \
        volatile double opaque = constant;                                                                          \
        const double C = opaque;                                                                                    \
        uint64_t sum = 0, off_grid = 0;                                                                             \
        for (int64_t i = 0; i < n; i++) {                                                                           \
            const double units = (((double)values[i] + C) - C) * one * other;                                       \
            /* As an integer, by bits: a conversion would not be vectorised on every processor, nor a branch. */    \
            const double high = (units + 0x1.8p84) - 0x1.8p84, low = units - high;                                  \
            const double high_bits = high * 0x1p-32 + 0x1.8p52, low_bits = low + 0x1.8p52;                          \
            uint64_t upper, lower;                                                                                  \
            memcpy(&upper, &high_bits, sizeof upper);                                                               \
            memcpy(&lower, &low_bits, sizeof lower);                                                                \
            off_grid += (uint64_t)(low_bits - 0x1.8p52 != low);                                                     \
            sum += (((upper - MAGIC_BITS) << 32) + (lower - MAGIC_BITS)) * (uint64_t)(2 * i + 1);                   \
        }                                                                                                           \
        return sum + off_grid * UINT64_C(0x5bd1e9955bd1e995);                                                       \
    }

DEFINE_CHECKSUM(vf_checksum_float, float)
DEFINE_CHECKSUM(vf_checksum_double, double)

/* A digest of memory, four bytes at a time, with the same weights. */
uint64_t vf_digest(const uint32_t *restrict words, int64_t n)
{
    uint64_t sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += (uint64_t)words[i] * (uint64_t)(2 * i + 1);
    return sum;
}
