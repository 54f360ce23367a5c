/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * portable.h - lets the same pure logic compile for BPF and for the host.
 *
 * The headers beside this one hold logic without kernel calls. The BPF unit
 * includes them after vmlinux.h; tests/native includes them with a C compiler
 * and its sanitizers. What differs between the two worlds is named here, once.
 */
#ifndef __MAGPIE_PORTABLE_H
#define __MAGPIE_PORTABLE_H

#ifdef __bpf__

/* The verifier proves that this loop ends; a plain one would be unrolled. */
#define for_bounded(i, from, to) bpf_for(i, from, to)

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

#ifndef READ_ONCE
#define READ_ONCE(x) (*(volatile __typeof__(x) *)&(x))
#define WRITE_ONCE(x, val) (*(volatile __typeof__(x) *)&(x) = (val))
#endif

#endif /* __bpf__ */
#endif /* __MAGPIE_PORTABLE_H */
