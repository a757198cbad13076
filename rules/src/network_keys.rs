//! The keys of a descriptor that are about networks: `match` and `group`.

use ipnet::IpNet;

use crate::{
    diagnostics::Diagnostics,
    group::NetworkGroup,
    key_values::KeyValues,
    network::{self, NetworkError},
    prefix_tree::MatchKind,
    yaml::{Located, quote},
};

/// The key of the entries in which Envoy sends addresses of clients.
pub(crate) const ADDRESS: &str = "remote_address";
/// The key of the entries in which Envoy sends networks as text.
pub(crate) const MASKED_ADDRESS: &str = "masked_remote_address";

/// The value of a descriptor, a network in its one spelling, and the kind of match that it declares; `None` after
/// reporting a problem.
pub(crate) fn value_and_kind(
    keys: &KeyValues,
    key: Option<&str>,
    diagnostics: &Diagnostics<'_>,
) -> (String, Option<MatchKind>) {
    let network = keys.given("match").map(|_| network(keys, key, diagnostics));
    let value = keys.text("value").map(|value| value.value.clone()).unwrap_or_default();
    match network {
        None => {
            let kind = MatchKind::declared(key.unwrap_or_default(), &value);
            (value, Some(kind))
        }
        Some(None) => (value, None),
        Some(Some(network)) => (network.to_string(), Some(MatchKind::Network)),
    }
}

/// The network of a descriptor with `match`; `None` after reporting a problem.
fn network(keys: &KeyValues, key: Option<&str>, diagnostics: &Diagnostics<'_>) -> Option<IpNet> {
    let mark = keys.choice("match", &[("cidr", ())])?.mark;
    if let Some(key) = keys.text("key").filter(|_| key.is_some_and(|key| key.contains('*'))) {
        let what = "`match: cidr` compares `key` as it is, so it cannot have a `*`";
        diagnostics.add(key.mark, what);
    }
    let value = keys.text("value");
    let is_absent = value.map_or_else(|| keys.given("value").is_none(), |value| value.value.is_empty());
    if is_absent {
        diagnostics.add(mark, "`match: cidr` needs a `value`: the network, as in `10.0.0.0/8`");
        return None;
    }
    let value = value?;
    let network = network::parse(&value.value);
    network.map_err(|error| diagnostics.add(value.mark, format!("{} {error}", quote(&value.value)))).ok()
}

/// Whether `value` is a network, or an address with a prefix length.
pub(crate) fn reads_like_network(value: &str) -> bool {
    matches!(network::parse(value), Ok(_) | Err(NetworkError::HostBits(_)))
}

/// The value of `group`; `None` also after reporting a problem.
pub(crate) fn group(keys: &KeyValues, diagnostics: &Diagnostics<'_>) -> Option<Located<NetworkGroup>> {
    let mark = keys.given("group")?;
    let lengths = keys.mapping("group")?;
    if lengths.given.is_empty() {
        let what =
            "`group` needs `ipv4` or `ipv6`: the prefix length of the networks that are counted as one key";
        diagnostics.add(mark, what);
        return None;
    }
    let length = |key, max| match lengths.given(key) {
        None => Some(max),
        Some(_) => u8::try_from(lengths.integer(key)?.value).ok(),
    };
    let ipv4 = length("ipv4", NetworkGroup::EACH.ipv4);
    let ipv6 = length("ipv6", NetworkGroup::EACH.ipv6);
    Some(Located { value: NetworkGroup { ipv4: ipv4?, ipv6: ipv6? }, mark })
}
