//! The bitmap that spreads its bits over cache lines: `sparsemask.h`, in several layouts.
//!
//! A [`Layout`] is one compilation of the header, reached through a table of C functions. A
//! [`Mask`] is memory for one, on pages of its own, so that a test can take away the right to write
//! them.

use std::cell::UnsafeCell;
use std::fmt;
use std::ops::Range;
use std::ptr::NonNull;

const PAGE: usize = 4096;

/// `struct sparsemask_visit`.
#[repr(C)]
struct Visit {
    from: u32,
    end: u32,
    first: u32,
    start: u32,
}

/// `struct sparsemask_line`, whose size depends on the layout.
enum Line {}

#[repr(C)]
struct Functions {
    bits: u32,
    line: u32,
    set: unsafe extern "C" fn(*mut Line, u32) -> bool,
    clear: unsafe extern "C" fn(*mut Line, u32) -> bool,
    test: unsafe extern "C" fn(*const Line, u32) -> bool,
    next: unsafe extern "C" fn(*mut Line, u32, u32, u32) -> u32,
    begin: unsafe extern "C" fn(*mut Visit, u32, u32, u32),
    step: unsafe extern "C" fn(*mut Visit, *mut Line, u32, *mut u32) -> bool,
    lowest: extern "C" fn(u64) -> u32,
    loads: extern "C" fn() -> u64,
}

/// One compilation of the header.
#[derive(Clone, Copy)]
pub struct Layout(&'static Functions);

macro_rules! layouts {
    ($($(#[$doc:meta])* $name:ident: [$($symbol:ident),*];)*) => {
        unsafe extern "C" {
            $($(safe static $symbol: Functions;)*)*
        }
        impl Layout {
            $($(#[$doc])* pub fn $name() -> Vec<Layout> {
                vec![$(Layout(&$symbol)),*]
            })*
        }
    };
}

layouts! {
    /// With the undefined-behaviour sanitizer and counted loads, the plain bitmap last.
    checked: [
        magpie_sparsemask_2_64_checked,
        magpie_sparsemask_4_64_checked,
        magpie_sparsemask_8_64_checked,
        magpie_sparsemask_16_64_checked,
        magpie_sparsemask_64_64_checked,
        magpie_sparsemask_64_8_checked
    ];
    /// Exactly as the header says, optimized; the plain bitmap last.
    plain: [
        magpie_sparsemask_2_64_plain,
        magpie_sparsemask_4_64_plain,
        magpie_sparsemask_8_64_plain,
        magpie_sparsemask_16_64_plain,
        magpie_sparsemask_64_64_plain,
        magpie_sparsemask_64_8_plain
    ];
}

impl Layout {
    /// Bits in a line.
    pub fn bits(self) -> u32 {
        self.0.bits
    }

    /// Bits that share a cache line of 64 bytes.
    pub fn bits_a_cache_line(self) -> u32 {
        self.0.bits * 64 / self.0.line
    }

    /// The position of the lowest set bit of a word that is not zero.
    pub fn lowest(self, word: u64) -> u32 {
        (self.0.lowest)(word)
    }

    /// Words that this thread has loaded from masks of checked layouts so far.
    pub fn loads(self) -> u64 {
        (self.0.loads)()
    }
}

impl fmt::Debug for Layout {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{} bits a cache line", self.bits_a_cache_line())
    }
}

#[repr(C, align(4096))]
struct Page(UnsafeCell<[u8; PAGE]>);

/// A sparsemask for `places` places in memory of its own.
pub struct Mask {
    functions: &'static Functions,
    pages: Box<[Page]>,
    places: u32,
    lines: u32,
}

// SAFETY: the memory is only ever accessed by the C functions, whose accesses are all atomic.
unsafe impl Sync for Mask {}

impl Mask {
    /// An empty mask.
    pub fn new(layout: Layout, places: u32) -> Mask {
        let functions = layout.0;
        let lines = places.div_ceil(functions.bits);
        let pages = (lines as usize * functions.line as usize).div_ceil(PAGE);
        Mask {
            functions,
            pages: (0..pages.max(1))
                .map(|_| Page(UnsafeCell::new([0; PAGE])))
                .collect(),
            places,
            lines,
        }
    }

    /// Where its memory is, and how many bytes of whole pages it has.
    pub fn memory(&self) -> (NonNull<u8>, usize) {
        (NonNull::from(&*self.pages).cast(), self.pages.len() * PAGE)
    }

    fn line_pointer(&self) -> *mut Line {
        self.pages.as_ptr().cast::<Line>().cast_mut()
    }

    /// The lines, after making sure that the place lies in one.
    fn lines_with(&self, place: u32) -> *mut Line {
        assert!(place < self.places, "place {place} of {}", self.places);
        self.line_pointer()
    }

    /// Sets a place; returns whether it was clear.
    pub fn set(&self, place: u32) -> bool {
        // SAFETY: the place lies in the mask's lines.
        unsafe { (self.functions.set)(self.lines_with(place), place) }
    }

    /// Clears a place; returns whether it was set.
    pub fn clear(&self, place: u32) -> bool {
        // SAFETY: the place lies in the mask's lines.
        unsafe { (self.functions.clear)(self.lines_with(place), place) }
    }

    /// Whether a place is set.
    pub fn test(&self, place: u32) -> bool {
        // SAFETY: the place lies in the mask's lines.
        unsafe { (self.functions.test)(self.lines_with(place), place) }
    }

    /// The first set place of a range, or the range's end. The range may reach beyond the mask.
    pub fn next(&self, range: Range<u32>) -> u32 {
        // SAFETY: the function reads no line from the number of lines on.
        unsafe { (self.functions.next)(self.line_pointer(), self.lines, range.start, range.end) }
    }

    /// The set places of a range, from `start` once around.
    pub fn visit(&self, range: Range<u32>, start: u32) -> impl Iterator<Item = u32> {
        let mut visit = Visit {
            from: 0,
            end: 0,
            first: 0,
            start: 0,
        };
        // SAFETY: the function writes the structure and nothing else.
        unsafe { (self.functions.begin)(&mut visit, range.start, range.end, start) };
        std::iter::from_fn(move || {
            let mut place = 0;
            // SAFETY: as in `next`; the two references are the function's alone.
            let found = unsafe {
                (self.functions.step)(&mut visit, self.line_pointer(), self.lines, &mut place)
            };
            found.then_some(place)
        })
    }
}
