static inline void fill_matmul(KernelTable&) {}
