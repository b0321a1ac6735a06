/* Adam in one pass over the arrays, as a C programmer would write it: what a kernel of the PS is compared with. */

#include <math.h>
#include <stddef.h>

void adam(float *restrict values, float *restrict m, float *restrict v, const float *restrict grad, size_t count,
          float rate, float beta1, float beta2, float epsilon)
{
    for (size_t i = 0; i < count; i++) {
        m[i] += (grad[i] - m[i]) * (1.0f - beta1);
        v[i] += (grad[i] * grad[i] - v[i]) * (1.0f - beta2);
        values[i] -= m[i] * rate / (sqrtf(v[i]) + epsilon);
    }
}
