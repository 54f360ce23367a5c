//! Kernels.
use std::path::PathBuf;

/// Which kernel a guest boots.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum KernelChoice {
    /// The newest kernel of the matrix that can load sched_ext programs.
    #[default]
    Default,
    /// A series of the matrix, such as `7.0`.
    Series(String),
    /// One's own kernel.
    Files {
        /// A bzImage.
        kernel: PathBuf,
        /// Its configuration; without it libbpf cannot load programs unless the kernel has IKCONFIG.
        config: Option<PathBuf>,
    },
}
