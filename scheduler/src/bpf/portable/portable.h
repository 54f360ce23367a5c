/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * portable.h - lets the same arithmetic compile for BPF and for the host.
 *
 * The headers beside this one hold arithmetic without kernel calls. The BPF unit includes them
 * after vmlinux.h. tests/native includes them with a C compiler and its sanitizers. This file has
 * all differences between the two.
 */
#ifndef __MAGPIE_PORTABLE_H
#define __MAGPIE_PORTABLE_H

#ifdef __bpf__

/* The verifier proves that this loop ends. The compiler would unroll a plain one. */
#define for_bounded(i, from, to) bpf_for(i, from, to)

/* A global function: the verifier proves it once, not at every use. */
#define __proved_once __noinline

#else

#include <stdbool.h>
#include <stdint.h>

typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;
typedef int32_t s32;
typedef int64_t s64;

#define for_bounded(i, from, to) for ((i) = (from); (i) < (to); (i)++)

/* Hints for the verifier, of variables and of arguments. */
#define barrier_var(var)
#define __proved_once static inline
#define __arg_trusted
#define __arg_nonnull

/*
 * Relaxed atomics rather than volatile accesses: the thread sanitizer then reports every access to
 * shared memory that is neither marked nor atomic. A test may define its own first, to count loads.
 */
#ifndef READ_ONCE
#define READ_ONCE(x) __atomic_load_n(&(x), __ATOMIC_RELAXED)
#endif
#ifndef WRITE_ONCE
#define WRITE_ONCE(x, val) __atomic_store_n(&(x), val, __ATOMIC_RELAXED)
#endif

#endif /* __bpf__ */

/*
 * Write a value that seldom changes: a write takes the line from the CPUs that have read it, even if
 * the value is the same.
 */
#define WRITE_CHANGED(var, val)        \
	do {                           \
		if ((var) != (val))    \
			(var) = (val); \
	} while (0)

#endif /* __MAGPIE_PORTABLE_H */
