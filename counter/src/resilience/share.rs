//! Shares of what many use, so that none of them takes all.

/// Once half is used, a caller gets at most this fraction of what the others leave free.
pub const CALLER_SHARE: usize = 4;

/// How much of something is used.
#[derive(Clone, Copy, Debug)]
pub struct SharedUse {
    /// By one of those that share it.
    pub own: usize,
    /// By all of them.
    pub all: usize,
    /// The most that all may use.
    pub max: usize,
}

impl SharedUse {
    /// Whether this one may use so much more. Once half is used, it gets one part of so many of what the others leave.
    pub fn has_room_for(self, more: usize, parts: usize) -> bool {
        let of_others = self.all.saturating_sub(self.own);
        self.all.saturating_add(more) <= self.max / 2
            || self.own.saturating_add(more) <= self.max.saturating_sub(of_others) / parts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_takes_half_and_others_find_room() {
        let (mut each, max) = ([0_usize; 4], 1_024);
        for one in 0..each.len() {
            while (SharedUse { own: each[one], all: each.iter().sum(), max }).has_room_for(1, CALLER_SHARE) {
                each[one] += 1;
            }
        }
        assert_eq!(each, [512, 128, 96, 72]);
    }
}
