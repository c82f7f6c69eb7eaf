// CUDA's half-precision types on the host, for the emulator: numbers are floats between being loaded and stored.
#include <math.h>
#include <string.h>
typedef unsigned short ushort;
static float from_half(ushort bits) {
    // As a float with the same exponent and fraction, whose exponents begin 112 lower.
    unsigned int all = (bits & 0x7fff) << 13;
    float value;
    memcpy(&value, &all, 4);
    value = (bits & 0x7fff) < 0x7c00 ? value * 0x1p112f : bits & 0x3ff ? NAN : INFINITY;
    return bits >> 15 ? -value : value;
}
static ushort to_half(double value) {
    ushort sign = signbit(value) ? 0x8000 : 0;
    double size = fabs(value);
    if (isnan(value)) return 0x7e00;
    if (size >= 65520) return sign | 0x7c00;
    if (size < ldexp(1, -14)) return sign | (ushort)nearbyint(ldexp(size, 24));
    int exponent = ilogb(size);
    // A fraction that is rounded up to 1 carries into the exponent.
    return sign | (ushort)(((exponent + 15) << 10) + (int)nearbyint(ldexp(size, 10 - exponent)) - 1024);
}
struct half {
    ushort bits;
    half() {}
    half(float value) : bits(to_half(value)) {}
    operator float() const { return from_half(bits); }
};
struct nv_bfloat16 {
    ushort bits;
    nv_bfloat16() {}
    nv_bfloat16(float value) {
        unsigned int all;
        memcpy(&all, &value, 4);
        bits = isnan(value) ? 0x7fc0 : (all + 0x7fff + (all >> 16 & 1)) >> 16;
    }
    operator float() const {
        unsigned int all = (unsigned int)bits << 16;
        float value;
        memcpy(&value, &all, 4);
        return value;
    }
};
static half __float2half_rn(float value) { return half(value); }
static float hexp(float value) { return expf(value); }
static nv_bfloat16 __float2bfloat16_rn(float value) { return nv_bfloat16(value); }
template <typename T> struct Two { T x, y; };
template <typename T> struct Four { T x, y, z, w; };
typedef Two<half> half2;
typedef Four<half> half4;
typedef Two<nv_bfloat16> nv_bfloat162;
typedef Four<nv_bfloat16> nv_bfloat164;
static half2 make_half2(half x, half y) { return {x, y}; }
static half4 make_half4(half x, half y, half z, half w) { return {x, y, z, w}; }
static nv_bfloat162 make_nv_bfloat162(nv_bfloat16 x, nv_bfloat16 y) { return {x, y}; }
static nv_bfloat164 make_nv_bfloat164(nv_bfloat16 x, nv_bfloat16 y, nv_bfloat16 z, nv_bfloat16 w) { return {x, y, z, w}; }
// Eight values of 16 bits.
struct uint4 { unsigned int x, y, z, w; };
static uint4 make_uint4(unsigned int x, unsigned int y, unsigned int z, unsigned int w) { return {x, y, z, w}; }
static unsigned int __pack_half2(half x, half y) { return x.bits | (unsigned int)y.bits << 16; }
