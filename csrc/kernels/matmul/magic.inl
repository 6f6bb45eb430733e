// Integers that are floats already.
//
// The bits of kMagic plus an integer I, |I| < 2^22, are those of the float kMagic + I. So a sum that
// starts from kMagicBits needs no conversion: with z = -kMagic * s, fma(s, kMagic + I, z) rounds
// s * I once, as a multiplication does. z is exact, as s has at most 19 bits and kMagic two. What
// differs is a zero's sign, which no result keeps (matmul.inl), and an s that is not finite: it
// always gives NaN, so its users compute what is not a number again in the plain way.
static constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23
static constexpr int32_t kMagicBits = 0x4b400000;
static_assert(32 * 255 * 127 < 1 << 22);  // of any |I| (matmul.inl)
