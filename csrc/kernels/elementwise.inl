static inline void fill_elementwise(KernelTable&) {}
