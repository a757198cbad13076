//! Stub.
#![allow(missing_docs)]
use crate::{
    algorithm::*,
    descriptor::Key,
    store::{memory::Memory, *},
    time::Timestamp,
};
impl Memory {
    pub fn lend(&self, _key: Key, _limit: &Limit, _hits: u64, _now: Timestamp) -> Option<Decision> {
        None
    }
    pub fn unlend(&self, _key: Key, _hits: u64) {}
    pub fn reserved(&self, _key: Key) -> u64 {
        0
    }
    pub fn set_reserved(&self, _key: Key, _hits: u64) {}
}
impl Limit {
    pub fn share(&self, _members: u32) -> Limit {
        self.clone()
    }
}
