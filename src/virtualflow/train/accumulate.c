/* The two inner loops of the exact reduction, fused so that each gradient is read once.
 *
 * Plain IEEE arithmetic in a fixed order: built with -ffp-contract=off, these give the same bits on every
 * instruction set, and the same bits as the torch version in accumulate.py.
 */
#include <stdint.h>
#include <string.h>

#define LANES 4096 /* the partial sums of squares; accumulate.py names the same number */
#define BLOCK 1024

/* accumulator (+)= gradient rounded to the grid of `constant`. Raises *peak to the largest finite |gradient|, as bits,
 * and returns whether a value was not finite. */
#define DEFINE_ADD(NAME, FLOAT, BITS, MAGNITUDE, INFINITE)                                                          \
    int NAME(const FLOAT *restrict gradient, double *restrict accumulator, int64_t n, double constant, int first,   \
             BITS *peak)                                                                                            \
    {                                                                                                               \
        BITS largest = 0, unclean = 0;                                                                              \
        volatile double opaque = constant; /* keeps the compiler from folding (x + C) - C */                        \
        const double C = opaque;                                                                                    \
        for (int64_t start = 0; start < n; start += BLOCK) {                                                        \
            const int64_t end = start + BLOCK < n ? start + BLOCK : n;                                              \
            for (int64_t i = start; i < end; i++) {                                                                 \
                BITS bits;                                                                                          \
                memcpy(&bits, gradient + i, sizeof bits);                                                           \
                bits &= MAGNITUDE;                                                                                  \
                const BITS finite = bits < INFINITE ? bits : 0;                                                     \
                largest = finite > largest ? finite : largest;                                                      \
                unclean |= bits ^ finite;                                                                           \
            }                                                                                                       \
            if (first)                                                                                              \
                for (int64_t i = start; i < end; i++)                                                               \
                    accumulator[i] = ((double)gradient[i] + C) - C;                                                 \
            else                                                                                                    \
                for (int64_t i = start; i < end; i++)                                                               \
                    accumulator[i] += ((double)gradient[i] + C) - C;                                                \
        }                                                                                                           \
        if (largest > *peak)                                                                                        \
            *peak = largest;                                                                                        \
        return unclean != 0;                                                                                        \
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
