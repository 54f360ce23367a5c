//! Setting a set place and clearing a clear one write nothing, counted by the memory itself.
//!
//! The pages of a mask are made read-only before each operation. A store then faults; the handler
//! counts it, makes the page writable, and the store is repeated. Nothing in the code under test is
//! changed or can hide a store. An atomic operation counts as one even when it would store what is
//! there already: it takes the cache line just the same.

use magpie_native::sparsemask::{Layout, Mask};
use nix::sys::mman::{ProtFlags, mprotect};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use std::collections::BTreeSet;
use std::ffi::{c_int, c_void};
use std::ptr::NonNull;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

static FIRST: AtomicUsize = AtomicUsize::new(0);
static BYTES: AtomicUsize = AtomicUsize::new(0);
static STORES: AtomicUsize = AtomicUsize::new(0);

/// One mask at a time: there is one handler.
static WATCHED: Mutex<()> = Mutex::new(());

fn protect(writable: bool) {
    let first =
        NonNull::new(FIRST.load(Ordering::SeqCst) as *mut c_void).expect("a mask is watched");
    let flags = if writable {
        ProtFlags::PROT_READ | ProtFlags::PROT_WRITE
    } else {
        ProtFlags::PROT_READ
    };
    // SAFETY: whole pages that belong to the watched mask alone; the handler gives writes back.
    unsafe { mprotect(first, BYTES.load(Ordering::SeqCst), flags) }.expect("mprotect of own pages");
}

extern "C" fn count_store(_: c_int, info: *mut nix::libc::siginfo_t, _: *mut c_void) {
    // SAFETY: the kernel passes a valid description of the fault.
    let address = unsafe { (*info).si_addr() } as usize;
    let first = FIRST.load(Ordering::SeqCst);
    if (first..first + BYTES.load(Ordering::SeqCst)).contains(&address) {
        STORES.fetch_add(1, Ordering::SeqCst);
        protect(true);
    } else {
        // A real fault: the default action, when the instruction is repeated.
        let default = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
        // SAFETY: the default action runs no code of ours.
        let _ = unsafe { sigaction(Signal::SIGSEGV, &default) };
    }
}

/// Runs `test` with a function that tells whether an operation on the mask stored.
fn watch(mask: &Mask, test: impl FnOnce(&dyn Fn(&dyn Fn()) -> bool)) {
    let _slot = WATCHED
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    let (first, bytes) = mask.memory();
    FIRST.store(first.as_ptr() as usize, Ordering::SeqCst);
    BYTES.store(bytes, Ordering::SeqCst);
    let handler = SigAction::new(
        SigHandler::SigAction(count_store),
        SaFlags::SA_SIGINFO,
        SigSet::empty(),
    );
    // SAFETY: the handler uses only atomics, mprotect and sigaction, which a handler may call.
    let previous = unsafe { sigaction(Signal::SIGSEGV, &handler) }.expect("own handler");

    test(&|operation| {
        let before = STORES.load(Ordering::SeqCst);
        protect(false);
        operation();
        protect(true);
        STORES.load(Ordering::SeqCst) > before
    });

    // SAFETY: what was there before.
    unsafe { sigaction(Signal::SIGSEGV, &previous) }.expect("the former handler");
}

#[test]
fn only_changes_store() {
    let mut seen = (false, false);
    for layout in Layout::plain().into_iter().chain(Layout::checked()) {
        for places in [1, 2, 8, 64, 512, 4096] {
            let mask = Mask::new(layout, places);
            let mut model = BTreeSet::new();
            let mut random = fastrand::Rng::with_seed(u64::from(places));
            watch(&mask, |stores| {
                for _ in 0..2000 {
                    let place = random.u32(0..places);
                    let (changes, stored) = if random.bool() {
                        (model.insert(place), stores(&|| _ = mask.set(place)))
                    } else {
                        (model.remove(&place), stores(&|| _ = mask.clear(place)))
                    };
                    assert_eq!(
                        stored, changes,
                        "{layout:?}, {places} places, place {place}"
                    );
                    seen = (seen.0 | stored, seen.1 | !stored);
                }
            });
            assert!(mask.visit(0..places, 0).eq(model));
        }
    }
    assert_eq!(seen, (true, true), "both kinds of operations happened");
}

#[test]
fn visits_and_tests_store_nothing() {
    for layout in Layout::plain() {
        let mask = Mask::new(layout, 512);
        for place in (0..512).step_by(3) {
            mask.set(place);
        }
        watch(&mask, |stores| {
            assert!(!stores(&|| assert_eq!(
                mask.visit(0..512, 100).count(),
                171
            )));
            assert!(!stores(&|| assert!(mask.test(3) && !mask.test(4))));
            assert!(stores(&|| assert!(mask.set(4))), "the watch works");
        });
    }
}
