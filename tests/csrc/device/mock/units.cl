// The words of csrc/device/kernels/units.dev without the instruction: a work-item reads from local
// memory what the instruction would take from the registers of its warp. Bytes are named as the PTX
// ISA does for mma.m16n8k32 with .s8:
//
//   groupID = lane >> 2, threadID_in_group = lane % 4
//   a_i: row groupID for i in 0..3 and 8..11, else groupID + 8
//        column threadID_in_group * 4 + (i & 3), + 16 for i >= 8
//   b_i: row threadID_in_group * 4 + (i & 3), + 16 for i >= 4;  column groupID
//   c_i: row groupID for i < 2, else groupID + 8;  column threadID_in_group * 2 + (i & 1)

#define KERNEL_OF_UNITS KERNEL(256)
#define ROLLED
// Formats read global memory; copies are made all the same.
#define STAGED(copy, original) (original)
INLINE void stage(LOCAL uint4* to, GLOBAL const uint4* from) { *to = *from; }
INLINE void end_stage() {}
// PoCL 3.1 (LLVM 15) decodes the last quarter as the second one where it knows that there are four.
INLINE int quarter_of(int warp) {
  volatile int quarter = warp & 3;
  return quarter;
}

typedef struct {
  LOCAL const uint* from;
  int lane;
} Left;
typedef Left Right;

INLINE Left load_left(LOCAL const uint* from, int lane) {
  const Left left = {from, lane};
  return left;
}
INLINE Right load_right(LOCAL const uint* from, int lane) { return load_left(from, lane); }

// Columns of `a` from `first` to `end`.
#define MULTIPLY(name, dot4, first, end, ...)                                                  \
  INLINE void name(int* c, Left a, Right b, __VA_ARGS__ const int* start) {                    \
    const int group_id = a.lane >> 2, thread_id = a.lane % 4;                                  \
    for (int i = 0; i < 4; ++i) {                                                              \
      const int row = i < 2 ? group_id : group_id + 8, column = thread_id * 2 + (i & 1);       \
      c[i] = start[i & 1];                                                                     \
      for (int k = first; k < end; k += 4) {                                                   \
        const int a_lane = row % 8 * 4 + k % 16 / 4, b_lane = column * 4 + k % 16 / 4;         \
        const int a_first = (row < 8 ? 0 : 4) + (k < 16 ? 0 : 8), b_first = k < 16 ? 0 : 4;    \
        c[i] = dot4(a.from[left_place(a_lane, a_first / 4)],                                   \
                    (int)b.from[right_place(b_lane, b_first / 4)], c[i]);                      \
      }                                                                                        \
    }                                                                                          \
  }
#define HALF int half_k,
MULTIPLY(multiply_signed, dot4_signed, 0, 32, )
MULTIPLY(multiply_unsigned, dot4_unsigned, 0, 32, )
MULTIPLY(multiply_half_signed, dot4_signed, 16 * half_k, 16 * half_k + 16, HALF)
MULTIPLY(multiply_half_unsigned, dot4_unsigned, 16 * half_k, 16 * half_k + 16, HALF)
#undef MULTIPLY
