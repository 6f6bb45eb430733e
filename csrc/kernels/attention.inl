static inline void fill_attention(KernelTable&) {}
