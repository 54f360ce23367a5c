/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The part of QEMU that the plugin uses, declared here because Debian ships
 * no plugin header.
 *
 * The first group is the plugin API, version 4 (QEMU 9.2 and later), a stable
 * interface. The second group is functions of the emulator itself, which QEMU
 * exports because it links with --export-dynamic.
 *
 * All are weak, because LD_PRELOAD loads the object also into programs that
 * have none of them.
 */
#ifndef MAGPIE_VTIME_QEMU_API_H
#define MAGPIE_VTIME_QEMU_API_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define QEMU_API __attribute__((weak))

/* Of GLib, which QEMU is linked with. */
typedef struct {
	uint8_t *data;
	unsigned int size;
} GByteArray;

QEMU_API GByteArray *g_byte_array_new(void);
QEMU_API uint8_t *g_byte_array_free(GByteArray *array, int free_data);

typedef uint64_t qemu_plugin_id_t;

struct qemu_plugin_tb;
struct qemu_plugin_insn;
struct qemu_plugin_scoreboard;

typedef struct qemu_info_t {
	const char *target_name;
	struct {
		int min;
		int cur;
	} version;
	bool system_emulation;
	union {
		struct {
			int smp_vcpus;
			int max_vcpus;
		} system;
	};
} qemu_info_t;

typedef struct {
	struct qemu_plugin_scoreboard *score;
	size_t offset;
} qemu_plugin_u64;

enum { QEMU_PLUGIN_CB_NO_REGS = 0, QEMU_PLUGIN_CB_RW_REGS = 2 };
enum { QEMU_PLUGIN_COND_NE = 3, QEMU_PLUGIN_COND_GE = 7 };
enum { QEMU_PLUGIN_INLINE_ADD_U64 = 0, QEMU_PLUGIN_INLINE_STORE_U64 = 1 };
enum { QEMU_PLUGIN_MEM_R = 1, QEMU_PLUGIN_MEM_W = 2 };

/* A loaded or stored value. */
typedef struct {
	int type;
	union {
		uint8_t u8;
		uint16_t u16;
		uint32_t u32;
		uint64_t u64;
		struct {
			uint64_t low, high;
		} u128;
	} data;
} qemu_plugin_mem_value;

struct qemu_plugin_hwaddr;

typedef void (*vcpu_cb)(qemu_plugin_id_t id, unsigned int index);
typedef void (*tb_cb)(qemu_plugin_id_t id, struct qemu_plugin_tb *tb);
typedef void (*exec_cb)(unsigned int index, void *userdata);
typedef void (*mem_cb)(unsigned int index, uint32_t info, uint64_t vaddr, void *userdata);
typedef void (*exit_cb)(qemu_plugin_id_t id, void *userdata);

QEMU_API struct qemu_plugin_scoreboard *qemu_plugin_scoreboard_new(size_t size);
QEMU_API void *qemu_plugin_scoreboard_find(struct qemu_plugin_scoreboard *score,
					   unsigned int index);
QEMU_API size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *tb);
QEMU_API struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *tb,
							  size_t index);
QEMU_API size_t qemu_plugin_insn_size(const struct qemu_plugin_insn *insn);
QEMU_API size_t qemu_plugin_insn_data(const struct qemu_plugin_insn *insn, void *dest, size_t size);
QEMU_API uint64_t qemu_plugin_insn_vaddr(const struct qemu_plugin_insn *insn);
QEMU_API bool qemu_plugin_read_memory_vaddr(uint64_t address, GByteArray *data, size_t size);
QEMU_API void qemu_plugin_register_vcpu_tb_exec_cb(struct qemu_plugin_tb *tb, exec_cb cb, int flags,
						   void *userdata);
QEMU_API void qemu_plugin_register_vcpu_tb_trans_cb(qemu_plugin_id_t id, tb_cb cb);
QEMU_API void qemu_plugin_register_vcpu_tb_exec_inline_per_vcpu(struct qemu_plugin_tb *tb, int op,
								qemu_plugin_u64 entry,
								uint64_t imm);
QEMU_API void qemu_plugin_register_vcpu_tb_exec_cond_cb(struct qemu_plugin_tb *tb, exec_cb cb,
							int flags, int cond, qemu_plugin_u64 entry,
							uint64_t imm, void *userdata);
QEMU_API void qemu_plugin_register_vcpu_insn_exec_cb(struct qemu_plugin_insn *insn, exec_cb cb,
						     int flags, void *userdata);
QEMU_API void qemu_plugin_register_vcpu_mem_cb(struct qemu_plugin_insn *insn, mem_cb cb, int flags,
					       int rw, void *userdata);
QEMU_API unsigned int qemu_plugin_mem_size_shift(uint32_t info);
QEMU_API qemu_plugin_mem_value qemu_plugin_mem_get_value(uint32_t info);
QEMU_API struct qemu_plugin_hwaddr *qemu_plugin_get_hwaddr(uint32_t info, uint64_t vaddr);
QEMU_API bool qemu_plugin_hwaddr_is_io(const struct qemu_plugin_hwaddr *where);
QEMU_API uint64_t qemu_plugin_hwaddr_phys_addr(const struct qemu_plugin_hwaddr *where);
QEMU_API void qemu_plugin_register_vcpu_init_cb(qemu_plugin_id_t id, vcpu_cb cb);
QEMU_API void qemu_plugin_register_vcpu_idle_cb(qemu_plugin_id_t id, vcpu_cb cb);
QEMU_API void qemu_plugin_register_vcpu_resume_cb(qemu_plugin_id_t id, vcpu_cb cb);
QEMU_API void qemu_plugin_register_atexit_cb(qemu_plugin_id_t id, exit_cb cb, void *userdata);

/* The emulator's own functions. A vCPU is opaque here. */
typedef struct CPUState CPUState;

QEMU_API CPUState *qemu_get_cpu(int index);
QEMU_API uint64_t cpu_get_phys_page_debug(CPUState *cpu, uint64_t vaddr);
QEMU_API int cpu_exec(CPUState *cpu);
QEMU_API void cpu_exec_start(CPUState *cpu);
QEMU_API void cpu_exec_end(CPUState *cpu);
QEMU_API void cpu_exit(CPUState *cpu);
QEMU_API void cpu_loop_exit_restore(CPUState *cpu, uintptr_t host_address);
QEMU_API void cpu_loop_exit(CPUState *cpu);
QEMU_API bool cpu_restore_state(CPUState *cpu, uintptr_t host_address);
QEMU_API int x86_cpu_gdb_read_register(CPUState *cpu, GByteArray *bytes, int number);
QEMU_API int x86_cpu_gdb_write_register(CPUState *cpu, uint8_t *bytes, int number);
QEMU_API void tb_flush(CPUState *cpu);

/* cpu_exec() returns this after cpu_exit() (include/exec/cpu-common.h of QEMU). */
enum { EXCP_INTERRUPT = 0x10000 };

#endif
