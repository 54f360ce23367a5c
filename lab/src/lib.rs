//! Stock kernels on virtual machines of any topology, without KVM.
