// Where keys and values lie in a KvView (table.h draws it).

// A key block of Q8_0: 32 dims of 16 cells. A value block: 32 dims of one cell.
struct KeyQ8 {
  uint16_t d[16];
  int8_t q[32 * 16];
};
struct ValueQ8 {
  uint16_t d;
  int8_t q[32];
};
static_assert(sizeof(KeyQ8) == 544 && sizeof(ValueQ8) == 34);

// The first dim of the keys of the sixteen cells around `slot`; of the values of `slot`.
static inline uint16_t* key_f16(const KvView& kv, int64_t slot, int64_t head) {
  return reinterpret_cast<uint16_t*>(kv.k) + (slot / 16 * kv.n_kv_heads + head) * kv.key_dim * 16;
}
static inline uint16_t* value_f16(const KvView& kv, int64_t slot, int64_t head) {
  return reinterpret_cast<uint16_t*>(kv.v) + (slot * kv.n_kv_heads + head) * kv.value_dim;
}
static inline KeyQ8* key_q8(const KvView& kv, int64_t slot, int64_t head) {
  return reinterpret_cast<KeyQ8*>(kv.k) + (slot / 16 * kv.n_kv_heads + head) * (kv.key_dim / 32);
}
static inline ValueQ8* value_q8(const KvView& kv, int64_t slot, int64_t head) {
  return reinterpret_cast<ValueQ8*>(kv.v) + (slot * kv.n_kv_heads + head) * (kv.value_dim / 32);
}

// Bytes of the keys of n slots, a multiple of 16, of all heads.
static inline int64_t key_nbytes(const KvView& kv, int64_t n) {
  const int64_t dims = n / 16 * kv.n_kv_heads * kv.key_dim;
  return kv.type == CacheType::F16 ? dims * 32 : dims / 32 * static_cast<int64_t>(sizeof(KeyQ8));
}
