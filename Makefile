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

run: build ## compare the scheduler with the kernel's own, in a virtual machine
	@echo "Booting a stock kernel with sched_ext in a virtual machine; the host is not changed."
	$(BENCH) --machine tiny2 --json target/run.json
	@echo
	@echo "An overcommitted host: 8 virtual CPUs on 2 real ones (CPUs $(TWO_CPUS))."
	taskset -c $(TWO_CPUS) $(BENCH) --machine flat8 --groups 1 --loops 50 \
		--json target/run-overcommit.json

test: setup ## run all tests
	@scripts/setup.sh packages
	@scripts/test.sh

MUTATE_VM = $(if $(VM),$(if $(filter only,$(VM)),--vm-only,--vm))

mutants: setup ## put small faults into the BPF side, each of which a test must find (VM=1: all, VM=only, WORDS)
	cargo run --release --package magpie-tests --bin mutate -- $(MUTATE_VM) $(WORDS)

soak: setup ## try to break the scheduler, with scenes from a seed (MAGPIE_SOAK_SECONDS, MAGPIE_SEED, MAGPIE_MACHINE, MAGPIE_SCENE, MAGPIE_CYCLES)
	cargo run --release --package magpie-tests --bin soak

results: build ## measure docs/results/ and make the tables of docs/results.md (ONLY="NAME...", FORCE=1)
	@ONLY="$(ONLY)" FORCE="$(FORCE)" TWO_CPUS="$(TWO_CPUS)" scripts/results.sh

gate: build ## fail if scx_magpie got slower than in the last release (LIMIT=3%, MEASURED=1)
	@GATE=1 ONLY="$(ONLY)" LIMIT="$(LIMIT)" MEASURED="$(MEASURED)" scripts/results.sh

# The files of install and uninstall, in parts: target file, mode, source. The programs themselves
# write their man pages and completions. Packages have settings in $(SYSCONFDIR); `make uninstall`
# would remove those that the user has changed, so without a package there is an example instead.
PARTS ?= scheduler example lab
INSTALLED = $(foreach part,$(PARTS),$($(part)))
scheduler := \
	$(PREFIX)/bin/scx_magpie:755:$(RELEASE)/scx_magpie \
	$(PREFIX)/share/man/man8/scx_magpie.8:644:$(RELEASE)/share/scx_magpie.8 \
	$(PREFIX)/share/bash-completion/completions/scx_magpie:644:$(RELEASE)/share/scx_magpie.bash \
	$(PREFIX)/share/zsh/site-functions/_scx_magpie:644:$(RELEASE)/share/scx_magpie.zsh \
	$(PREFIX)/share/fish/vendor_completions.d/scx_magpie.fish:644:$(RELEASE)/share/scx_magpie.fish \
	$(UNITDIR)/scx_magpie.service:644:$(RELEASE)/share/scx_magpie.service
settings := \
	$(SYSCONFDIR)/scx_magpie.toml:644:packaging/scx_magpie.toml \
	$(SYSCONFDIR)/default/scx_magpie:644:packaging/scx_magpie.default
example := \
	$(PREFIX)/share/doc/scx_magpie/scx_magpie.toml:644:packaging/scx_magpie.toml
lab := \
	$(PREFIX)/bin/magpie:755:$(RELEASE)/magpie \
	$(PREFIX)/bin/magpie-load:755:$(RELEASE)/magpie-load \
	$(PREFIX)/lib/magpie/magpie-guest:755:$(RELEASE)/magpie-guest \
	$(PREFIX)/share/man/man1/magpie.1:644:$(RELEASE)/share/magpie.1 \
	$(PREFIX)/share/man/man1/magpie-load.1:644:$(RELEASE)/share/magpie-load.1 \
	$(PREFIX)/share/magpie/prometheus/alerts.yml:644:packaging/prometheus/alerts.yml \
	$(PREFIX)/share/magpie/prometheus/dashboard.json:644:packaging/prometheus/dashboard.json \
	$(UNITDIR)/magpie-export.service:644:$(RELEASE)/share/magpie-export.service

# Does not begin with setup or build: root often installs from a tree that a user has built.
install: ## install all programs, units and man pages (PREFIX, DESTDIR)
	@test -x $(RELEASE)/scx_magpie || { echo "run 'make build' first" >&2; exit 1; }
	@mkdir -p $(RELEASE)/share
	@for page in scx_magpie.8 magpie.1 magpie-load.1; do \
		$(RELEASE)/$${page%.*} man > $(RELEASE)/share/$$page || exit 1; \
	done
	@for shell in bash zsh fish; do \
		$(RELEASE)/scx_magpie completions $$shell > $(RELEASE)/share/scx_magpie.$$shell || exit 1; \
	done
	@for unit in scx_magpie magpie-export; do \
		sed 's|@PREFIX@|$(PREFIX)|' packaging/$$unit.service > $(RELEASE)/share/$$unit.service; \
	done
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
	@for folder in share/doc/scx_magpie share/magpie/prometheus share/magpie lib/magpie; do \
		rmdir --ignore-fail-on-non-empty "$(DESTDIR)$(PREFIX)/$$folder" 2>/dev/null || true; \
	done

book: setup ## make a book of the pages of docs/, in target/book/
	cargo run --release --quiet -p magpie-book

deb: setup ## make Debian packages in target/deb/, and check them with lintian
	@scripts/setup.sh packages
	cargo build --release --workspace
	@scripts/deb.sh

SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help setup build run test mutants soak results gate install uninstall book deb
