//! Shares of cgroups: `shares.h`.

/// The share of the root.
pub const SHARE_ONE: u64 = 1 << 28;
/// The activity of a cgroup that is always active.
pub const ACTIVITY_ONE: u32 = 1 << 16;
/// The factor of a cgroup whose tasks age as without cgroups.
pub const FACTOR_ONE: u64 = 1 << 20;
/// Active weights are in units of this part of a nice weight.
pub const ACTIVE_ONE: u64 = 16;

mod ffi {
    unsafe extern "C" {
        pub safe fn magpie_scale_cgroup_weight(weight: u32) -> u32;
        pub safe fn magpie_activity_add(activity: u32, is_active: bool) -> u32;
        pub safe fn magpie_activity_weight(weight: u64, activity: u32) -> u64;
        pub safe fn magpie_share_of_parent(
            parent: u64,
            weight: u64,
            activity: u32,
            sum: u64,
        ) -> u64;
        pub safe fn magpie_cgroup_factor(
            active: u64,
            share: u64,
            all_active: u64,
            all_share: u64,
        ) -> u64;
        pub safe fn magpie_scale_rate(rate: u64, factor: u64) -> u64;
    }
}

/// A cpu.weight on the scale of nice weights.
pub fn scale_cgroup_weight(weight: u32) -> u32 {
    ffi::magpie_scale_cgroup_weight(weight)
}

/// The activity after one more look.
pub fn activity_add(activity: u32, is_active: bool) -> u32 {
    ffi::magpie_activity_add(activity, is_active)
}

/// A weight, as far as it is active.
pub fn activity_weight(weight: u64, activity: u32) -> u64 {
    ffi::magpie_activity_weight(weight, activity)
}

/// The part of its parent's share that a cgroup has while it is active.
pub fn share_of_parent(parent: u64, weight: u64, activity: u32, sum: u64) -> u64 {
    ffi::magpie_share_of_parent(parent, weight, activity, sum)
}

/// The factor of the rates of a cgroup's tasks, times 2^20.
pub fn cgroup_factor(active: u64, share: u64, all_active: u64, all_share: u64) -> u64 {
    ffi::magpie_cgroup_factor(active, share, all_active, all_share)
}

/// A rate times a factor.
pub fn scale_rate(rate: u64, factor: u64) -> u64 {
    ffi::magpie_scale_rate(rate, factor)
}
