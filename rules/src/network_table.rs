//! The networks of one level of a rule file, and the longest one that contains an address.
//!
//! A table for each prefix length, as a radix tree would be deeper the more networks there are: a lookup tries each
//! length that occurs for the key, the longest first, so at most 33 for IPv4 and 129 for IPv6.

use std::net::IpAddr;

use ipnet::IpNet;
use rustc_hash::FxHashMap;
use tollgate_counter::descriptor::Entry;

use crate::network::{self, network_of};

/// Networks with their numbers, by the keys of entries.
#[derive(Debug, Default)]
pub(crate) struct NetworkTable {
    of_key: FxHashMap<Box<[u8]>, NetworksOfKey>,
    // By composite text, for the compiler: no entry is compared with it.
    by_text: FxHashMap<Box<str>, u32>,
}

#[derive(Debug, Default)]
struct NetworksOfKey {
    numbers: FxHashMap<IpNet, u32>,
    // The prefix lengths that occur, the longest first.
    ipv4: Vec<u8>,
    ipv6: Vec<u8>,
}

impl NetworkTable {
    /// Adds the network of a node with this composite text and key. It must be new for the key.
    pub(crate) fn add(&mut self, composite: String, key: &str, network: IpNet, number: u32) {
        self.by_text.insert(composite.into(), number);
        let networks = self.of_key.entry(key.as_bytes().into()).or_default();
        let lengths = if network.addr().is_ipv4() { &mut networks.ipv4 } else { &mut networks.ipv6 };
        if let Err(place) = lengths.binary_search_by(|length| network.prefix_len().cmp(length)) {
            lengths.insert(place, network.prefix_len());
        }
        networks.numbers.insert(network, number);
    }

    /// The number of the network with this composite text.
    pub(crate) fn number(&self, composite: &str) -> Option<u32> {
        self.by_text.get(composite).copied()
    }

    /// The longest network that contains the address of an entry. Adds the number of tables tried to `visits`.
    // `inline(never)`: keeps the lookup of levels without networks small.
    #[inline(never)]
    pub(crate) fn longest_match(&self, entry: Entry<'_>, visits: &mut usize) -> Option<u32> {
        *visits += 1;
        // Values are parsed only if there are networks for their key.
        let networks = self.of_key.get(entry.key)?;
        networks.longest_with(network::address(entry.value)?, visits)
    }
}

impl NetworksOfKey {
    fn longest_with(&self, address: IpAddr, visits: &mut usize) -> Option<u32> {
        let lengths = if address.is_ipv4() { &self.ipv4 } else { &self.ipv6 };
        lengths.iter().find_map(|length| {
            *visits += 1;
            self.numbers.get(&network_of(address, *length)).copied()
        })
    }
}
