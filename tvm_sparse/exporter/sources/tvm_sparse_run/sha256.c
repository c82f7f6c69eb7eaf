/* SHA-256 (FIPS 180-4), with the instructions that many x86-64 processors have for it: ten times as fast. */
#include "internal.h"

#include <string.h>

static const uint32_t ROUND[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static uint32_t rotated(uint32_t x, int bits) { return x >> bits | x << (32 - bits); }

static void compress(uint32_t state[8], const unsigned char *data, size_t blocks) {
  for (; blocks; blocks--, data += 64) {
    uint32_t w[64], s[8];
    for (int i = 0; i < 16; i++)
      w[i] = (uint32_t)data[4 * i] << 24 | data[4 * i + 1] << 16 | data[4 * i + 2] << 8 | data[4 * i + 3];
    for (int i = 16; i < 64; i++) {
      uint32_t a = w[i - 15], b = w[i - 2];
      w[i] = w[i - 16] + (rotated(a, 7) ^ rotated(a, 18) ^ a >> 3) + w[i - 7] +
             (rotated(b, 17) ^ rotated(b, 19) ^ b >> 10);
    }
    memcpy(s, state, sizeof s);
    for (int i = 0; i < 64; i++) {
      uint32_t a = s[0], e = s[4];
      uint32_t x =
          s[7] + (rotated(e, 6) ^ rotated(e, 11) ^ rotated(e, 25)) + ((e & s[5]) ^ (~e & s[6])) + ROUND[i] + w[i];
      uint32_t y = (rotated(a, 2) ^ rotated(a, 13) ^ rotated(a, 22)) + ((a & s[1]) ^ (a & s[2]) ^ (s[1] & s[2]));
      memmove(s + 1, s, 7 * sizeof *s);
      s[4] += x;
      s[0] = x + y;
    }
    for (int i = 0; i < 8; i++) state[i] += s[i];
  }
}

#ifdef __x86_64__
#include <cpuid.h>
#include <immintrin.h>

static bool has_instructions(void) {
  unsigned a, b = 0, c, d;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) && b >> 29 & 1;
}

/* As Intel's "SHA Extensions" describes it: a state is kept as the words ABEF and CDGH. */
__attribute__((target("sha,sse4.1"))) static void compress_fast(uint32_t state[8], const unsigned char *data,
                                                                size_t blocks) {
  const __m128i order = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
  __m128i badc = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)state), 0xB1);
  __m128i hgfe = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)(state + 4)), 0x1B);
  __m128i abef = _mm_alignr_epi8(badc, hgfe, 8), cdgh = _mm_blend_epi16(hgfe, badc, 0xF0);
  for (; blocks; blocks--, data += 64) {
    __m128i w[4], a = abef, c = cdgh;
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) {
      if (i < 4) {
        w[i] = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(data + 16 * i)), order);
      } else {
        __m128i last = w[(i + 3) & 3], begun = _mm_sha256msg1_epu32(w[i & 3], w[(i + 1) & 3]);
        begun = _mm_add_epi32(begun, _mm_alignr_epi8(last, w[(i + 2) & 3], 4));
        w[i & 3] = _mm_sha256msg2_epu32(begun, last);
      }
      __m128i x = _mm_add_epi32(w[i & 3], _mm_loadu_si128((const __m128i *)(ROUND + 4 * i)));
      c = _mm_sha256rnds2_epu32(c, a, x);
      a = _mm_sha256rnds2_epu32(a, c, _mm_shuffle_epi32(x, 0x0E));
    }
    abef = _mm_add_epi32(abef, a);
    cdgh = _mm_add_epi32(cdgh, c);
  }
  __m128i feba = _mm_shuffle_epi32(abef, 0x1B), dchg = _mm_shuffle_epi32(cdgh, 0xB1);
  _mm_storeu_si128((__m128i *)state, _mm_blend_epi16(feba, dchg, 0xF0));
  _mm_storeu_si128((__m128i *)(state + 4), _mm_alignr_epi8(dchg, feba, 8));
}
#else
static bool has_instructions(void) { return false; }
#define compress_fast compress
#endif

void sha256(const void *data, size_t size_bytes, unsigned char digest[SHA256_BYTES]) {
  uint32_t state[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  void (*run)(uint32_t *, const unsigned char *, size_t) = has_instructions() ? compress_fast : compress;
  size_t whole = size_bytes / 64, rest = size_bytes % 64;
  unsigned char last[128] = {0};
  run(state, data, whole);
  if (rest) memcpy(last, (const char *)data + 64 * whole, rest);
  last[rest] = 0x80;
  size_t blocks = rest < 56 ? 1 : 2;
  for (int i = 0; i < 8; i++) last[64 * blocks - 1 - i] = (unsigned char)((uint64_t)size_bytes * 8 >> 8 * i);
  run(state, last, blocks);
  for (int i = 0; i < 32; i++) digest[i] = (unsigned char)(state[i / 4] >> (24 - 8 * (i % 4)));
}
