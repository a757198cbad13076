//! Converts values of the reference's variables into those of settings.

use std::net::SocketAddr;

use crate::settings::{
    catalog::{REDIS_CONNECTIONS_MAX, REDIS_TIMEOUT_MAX, REDIS_TIMEOUT_MIN},
    value_type::duration,
};

/// The host of listeners without one.
pub(super) const ANY_HOST: &str = "0.0.0.0";

pub(super) fn joined_address(host: &str, port: &str) -> String {
    let host = if host == "localhost" { "127.0.0.1" } else { host };
    if host.contains(':') && !host.starts_with('[') {
        format!("[{host}]:{port}")
    } else {
        format!("{host}:{port}")
    }
}

/// An address, of which the host may be left out.
pub(super) fn address(text: &str) -> Option<String> {
    let (host, port) = text.rsplit_once(':')?;
    let address = joined_address(if host.is_empty() { ANY_HOST } else { host }, port);
    address.parse::<SocketAddr>().ok().map(|_| address)
}

pub(super) fn log_level(text: &str) -> Option<String> {
    let level = text.to_ascii_lowercase();
    let level = match &*level {
        "panic" | "fatal" => "error",
        "warning" => "warn",
        level @ ("error" | "warn" | "info" | "debug" | "trace") => level,
        _another => return None,
    };
    Some(level.to_owned())
}

/// A boolean as Go reads it.
pub(super) fn switch(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _another => None,
    }
}

/// The reference bounds only its wait for a connection, and 0 means no bound there. Here the longest one stands for what
/// is longer.
pub(super) fn redis_timeout(text: &str) -> Option<String> {
    let given = duration(text)?;
    let timeout = if given.is_zero() { REDIS_TIMEOUT_MAX } else { given };
    let within = timeout.clamp(REDIS_TIMEOUT_MIN, REDIS_TIMEOUT_MAX);
    Some(if within == given { text.to_owned() } else { format!("{}ms", within.as_millis()) })
}

/// Calls of the reference wait for a connection of their own, so its pools are larger than what is of use here.
pub(super) fn redis_connections(text: &str) -> Option<String> {
    let given: u64 = text.parse().ok().filter(|connections| *connections > 0)?;
    Some(given.min(REDIS_CONNECTIONS_MAX).to_string())
}

pub(super) fn boolean(text: &str) -> Option<String> {
    switch(text).map(|on| on.to_string())
}
