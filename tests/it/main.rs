//! Tests of the whole, as far as it needs nothing but itself.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod reload;
