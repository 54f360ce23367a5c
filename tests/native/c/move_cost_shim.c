// SPDX-License-Identifier: GPL-2.0-only
/* move_cost_shim.c - portable/move_cost.h as functions that Rust can call. */
#include "move_cost.h"

u64 magpie_far_move_cost(const struct move_history *history);
void magpie_note_next_burst(struct move_history *history, bool is_far);
void magpie_note_far_move(struct move_history *history, u64 ns);
void magpie_learn_burst(struct move_history *history, u64 ns);

u64 magpie_far_move_cost(const struct move_history *history)
{
	return far_move_cost(history);
}

void magpie_note_next_burst(struct move_history *history, bool is_far)
{
	note_next_burst(history, is_far);
}

void magpie_note_far_move(struct move_history *history, u64 ns)
{
	note_far_move(history, ns);
}

void magpie_learn_burst(struct move_history *history, u64 ns)
{
	learn_burst(history, ns);
}
