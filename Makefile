# SPDX-License-Identifier: GPL-2.0-only
# The commands of Magpie; `make help` lists them.

PREFIX ?= /usr/local
DESTDIR ?=
SYSCONFDIR ?= /etc
UNITDIR ?= /usr/lib/systemd/system

# A cargo that rustup installed is often not in root's PATH.
export PATH := $(HOME)/.cargo/bin:$(PATH)

ROUNDS ?= 7
RELEASE := target/release
BENCH := $(RELEASE)/magpie bench --in vm --sched eevdf,scx_magpie --workload hackbench \
	--rounds $(ROUNDS)

# The first two CPUs that this process may use. With eight vCPUs on them the host is overcommitted,
# however many CPUs the machine has.
TWO_CPUS = $(shell taskset -cp $$$$ | grep -o '[0-9,-]*$$' | tr , '\n' | \
	awk -F - '{for (cpu = $$1; cpu <= $$NF; cpu++) print cpu}' | head -2 | paste -sd,)

help: ## show this
	@awk -F ':.*## ' '/^[a-z]+:.*## /{printf "  make %-10s %s\n", $$1, $$2}' Makefile

setup: ## install what is missing on this machine (Debian, Ubuntu; as root)
	@scripts/setup.sh

build: setup ## build everything, in release mode
	cargo build --release --workspace

run: build ## show the scheduler at work on a real kernel, inside a virtual machine
	@echo "Booting a stock kernel with sched_ext in a virtual machine; the host is not changed."
	$(BENCH) --machine tiny2 --json target/run.json
	@echo
	@echo "An overcommitted host: 8 virtual CPUs on 2 real ones (CPUs $(TWO_CPUS))."
	taskset -c $(TWO_CPUS) $(BENCH) --machine flat8 --groups 1 --loops 50 \
		--json target/run-overcommit.json

test: setup ## run all tests
	@scripts/test.sh

results: build ## measure docs/results/ and make the tables of docs/results.md (ONLY="NAME...", FORCE=1)
	@ONLY="$(ONLY)" FORCE="$(FORCE)" scripts/results.sh

gate: build ## fail if scx_magpie got slower than in the last release (LIMIT=3%, MEASURED=1)
	@GATE=1 ONLY="$(ONLY)" LIMIT="$(LIMIT)" MEASURED="$(MEASURED)" scripts/results.sh

# install and uninstall both work on this list: target file, mode, source. The program itself writes
# its man page and completions.
INSTALLED := \
	$(PREFIX)/bin/scx_magpie:755:$(RELEASE)/scx_magpie \
	$(PREFIX)/bin/magpie:755:$(RELEASE)/magpie \
	$(PREFIX)/share/man/man8/scx_magpie.8:644:$(RELEASE)/share/scx_magpie.8 \
	$(PREFIX)/share/bash-completion/completions/scx_magpie:644:$(RELEASE)/share/scx_magpie.bash \
	$(PREFIX)/share/zsh/site-functions/_scx_magpie:644:$(RELEASE)/share/scx_magpie.zsh \
	$(PREFIX)/share/fish/vendor_completions.d/scx_magpie.fish:644:$(RELEASE)/share/scx_magpie.fish \
	$(PREFIX)/share/doc/scx_magpie/scx_magpie.toml:644:packaging/scx_magpie.toml \
	$(UNITDIR)/scx_magpie.service:644:$(RELEASE)/share/scx_magpie.service

# Does not begin with setup or build: root often installs from a tree that a user has built.
install: ## install the scheduler and magpie (PREFIX, DESTDIR)
	@test -x $(RELEASE)/scx_magpie || { echo "run 'make build' first" >&2; exit 1; }
	@mkdir -p $(RELEASE)/share
	@$(RELEASE)/scx_magpie man > $(RELEASE)/share/scx_magpie.8
	@for shell in bash zsh fish; do \
		$(RELEASE)/scx_magpie completions $$shell > $(RELEASE)/share/scx_magpie.$$shell || exit 1; \
	done
	@sed 's|@PREFIX@|$(PREFIX)|' packaging/scx_magpie.service > $(RELEASE)/share/scx_magpie.service
	@for entry in $(INSTALLED); do \
		IFS=: read -r to mode from <<< "$$entry"; \
		echo "install $(DESTDIR)$$to"; \
		case $$mode in 755) strip=-s ;; *) strip= ;; esac; \
		install -D $$strip -m "$$mode" "$$from" "$(DESTDIR)$$to" || exit 1; \
	done

uninstall: ## remove what install installed, and nothing else
	@for entry in $(INSTALLED); do \
		echo "remove $(DESTDIR)$${entry%%:*}"; \
		rm -f "$(DESTDIR)$${entry%%:*}" || exit 1; \
	done
	@rmdir --ignore-fail-on-non-empty "$(DESTDIR)$(PREFIX)/share/doc/scx_magpie" 2>/dev/null || true

SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help setup build run test results gate install uninstall
