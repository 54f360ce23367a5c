// SPDX-License-Identifier: GPL-2.0-only
/* move_cost_shim.c - portable/move_cost.h as functions that Rust can call. */
#include "move_cost.h"

bool magpie_does_better_at_home(const struct move_history *history);
u64 magpie_far_move_cost(const struct move_history *history);
void magpie_note_far_move(struct move_history *history, u64 ns);
void magpie_note_next_burst(struct move_history *history, u32 kind);
void magpie_learn_burst(struct move_history *history, u64 ns);

bool magpie_does_better_at_home(const struct move_history *history)
{
	return does_better_at_home(history);
}

u64 magpie_far_move_cost(const struct move_history *history)
{
	return far_move_cost(history);
}

void magpie_note_next_burst(struct move_history *history, u32 kind)
{
	note_next_burst(history, kind);
}

void magpie_learn_burst(struct move_history *history, u64 ns)
{
	learn_burst(history, ns);
}

void magpie_note_far_move(struct move_history *history, u64 ns)
{
	note_far_move(history, ns);
}
