//! Tests of the whole, as far as it needs nothing but itself.

mod reload;
