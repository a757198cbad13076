//! The address that this process advertises to others.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};

use tokio::{
    net::{UdpSocket, lookup_host},
    time::timeout,
};
use tracing::warn;

/// Timeout for the lookup of a seed's name.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(1);
/// Documentation addresses (RFC 5737, RFC 3849), which are routed over the default route.
const ROUTE_PROBES: [SocketAddr; 2] = [
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), 9),
    SocketAddr::new(IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1)), 9),
];

/// Returns the `HOST:PORT` to advertise: the `configured` value, where a bare IP address gets the port of the
/// listener; else the `bound` address; else, if that is unspecified, the source address towards a seed or the
/// default route.
pub(super) async fn address(configured: Option<&str>, bound: SocketAddr, seeds: &[String]) -> String {
    if let Some(configured) = configured {
        let bare = configured.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
        return bare
            .map_or_else(|_| configured.to_owned(), |ip| SocketAddr::new(ip, bound.port()).to_string());
    }
    if !bound.ip().is_unspecified() {
        return bound.to_string();
    }
    let mut targets = Vec::new();
    for seed in seeds {
        if let Ok(Ok(found)) = timeout(LOOKUP_TIMEOUT, lookup_host(seed)).await {
            targets.extend(found);
        }
    }
    targets.extend(ROUTE_PROBES);
    for target in targets.into_iter().filter(|target| bound.is_ipv6() || target.is_ipv4()) {
        if let Ok(ip) = local_address_towards(target).await {
            return SocketAddr::new(ip, bound.port()).to_string();
        }
    }
    let loopback: IpAddr =
        if bound.is_ipv6() { Ipv6Addr::LOCALHOST.into() } else { Ipv4Addr::LOCALHOST.into() };
    let address = SocketAddr::new(loopback, bound.port()).to_string();
    warn!(address, "advertising the loopback address because no route was found; set cluster.advertise");
    address
}

/// Whether `value` has the form `HOST:PORT`.
pub fn is_host_port(value: &str) -> bool {
    let parts = value.rsplit_once(':');
    parts.is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port != 0))
}

/// The source address that the system would use towards `target`. Sends nothing.
async fn local_address_towards(target: SocketAddr) -> io::Result<IpAddr> {
    let any: IpAddr =
        if target.is_ipv6() { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind(SocketAddr::new(any, 0)).await?;
    socket.connect(target).await?;
    Ok(socket.local_addr()?.ip())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn configured_address_is_advertised_and_bare_ip_gets_bound_port() {
        let bound = "127.0.0.1:8082".parse().unwrap();
        for (configured, advertised) in [
            (Some("replica-1:9000"), "replica-1:9000"),
            (Some("10.0.0.7"), "10.0.0.7:8082"),
            (Some("fd00::7"), "[fd00::7]:8082"),
            (Some("[fd00::7]"), "[fd00::7]:8082"),
            (Some("[fd00::7]:9000"), "[fd00::7]:9000"),
            (None, "127.0.0.1:8082"),
        ] {
            assert_eq!(address(configured, bound, &[]).await, advertised);
        }
    }

    #[test]
    fn address_without_host_or_port_is_refused() {
        for valid in ["replica-1:8082", "10.0.0.7:1", "[fd00::7]:65535"] {
            assert!(is_host_port(valid));
        }
        for invalid in ["replica-1", ":8082", "replica-1:", "replica-1:0", "replica-1:65536", ""] {
            assert!(!is_host_port(invalid), "{invalid}");
        }
    }

    #[tokio::test]
    async fn unspecified_listener_advertises_source_address_towards_seed() {
        let seeds = ["127.0.0.9:8082".to_owned()];
        assert_eq!(address(None, "0.0.0.0:8082".parse().unwrap(), &seeds).await, "127.0.0.1:8082");
        let seeds = ["[::1]:8082".to_owned()];
        assert_eq!(address(None, "[::]:8082".parse().unwrap(), &seeds).await, "[::1]:8082");
    }

    #[tokio::test]
    async fn unspecified_listener_without_seeds_advertises_real_address() {
        for bound in ["0.0.0.0:8082", "[::]:8082"] {
            let advertised: SocketAddr = address(None, bound.parse().unwrap(), &[]).await.parse().unwrap();
            assert!(!advertised.ip().is_unspecified() && advertised.port() == 8082, "{advertised}");
        }
    }
}
