//! Where the counters are, as an operator and the variables of the reference say.

use crate::settings::{
    reference::translation::{Backend, BackendChoice, Own, Translation, Variables},
    value_type::StoreKind,
};

/// What an operator can do if the store of the variables cannot be used.
const WAYS_OUT: &str = "name a server of Redis in REDIS_URL as HOST:PORT, or set TOLLGATE_CLUSTER__LISTEN for counters in the memory of a cluster, or TOLLGATE_STORE__KIND=memory for those of one replica";

/// The variables that name the store.
const STORE: [&str; 5] = ["BACKEND_TYPE", "REDIS_URL", "REDIS_TYPE", "REDIS_SOCKET_TYPE", "REDIS_TLS"];

/// What a password is for.
#[derive(Clone, Copy)]
pub(super) enum Login {
    Servers,
    Sentinels,
}

/// Where the counters are. Settings of an operator decide before the variables of the reference. An error says why
/// the store of the variables cannot be used.
pub(super) fn choose(variables: Variables<'_>, own: Own) -> Result<BackendChoice, String> {
    let in_memory = if own.has_cluster { Backend::Cluster } else { Backend::Memory };
    let (backend, reason) = match own.store {
        Some(StoreKind::Redis) => (Backend::Redis, "store.kind is redis"),
        Some(StoreKind::Memory) => (in_memory, "store.kind is memory"),
        None if own.has_cluster => (in_memory, "cluster.listen is set"),
        None => reference_backend(variables)?,
    };
    Ok(BackendChoice { backend, reason })
}

fn reference_backend(variables: Variables<'_>) -> Result<(Backend, &'static str), String> {
    let backend = variables.value("BACKEND_TYPE");
    if let Some(other) = backend.filter(|backend| *backend != "redis") {
        return Err(format!("BACKEND_TYPE: `{other}` is not a store of Tollgate; {WAYS_OUT}"));
    }
    match variables.value("REDIS_URL") {
        None if backend.is_none() => Ok((Backend::Memory, "REDIS_URL is not set")),
        None => Err(format!("BACKEND_TYPE: `redis` without REDIS_URL is a Unix socket; {WAYS_OUT}")),
        Some(_) if has_only_invalid_names(&servers(variables).1) => {
            Ok((Backend::Memory, "the host of REDIS_URL is below .invalid, so it does not exist"))
        }
        Some(_) => Ok((Backend::Redis, "REDIS_URL names a server")),
    }
}

/// The service of sentinels, if `REDIS_TYPE` says so, and the servers of `REDIS_URL`.
fn servers(variables: Variables<'_>) -> (Option<&str>, Vec<&str>) {
    let mut servers: Vec<_> =
        variables.value("REDIS_URL").into_iter().flat_map(|urls| urls.split(',')).map(str::trim).collect();
    let has_service = redis_type(variables) == "sentinel" && !servers.is_empty();
    (has_service.then(|| servers.remove(0)), servers)
}

fn redis_type(variables: Variables<'_>) -> String {
    variables.value("REDIS_TYPE").unwrap_or("single").to_ascii_lowercase()
}

/// Whether these servers stand for none. An address without servers is an error instead.
fn has_only_invalid_names(servers: &[&str]) -> bool {
    !servers.is_empty() && servers.iter().all(|server| is_invalid(server))
}

/// Whether the name of a server is one that never exists (RFC 6761).
fn is_invalid(server: &str) -> bool {
    let (_, rest) = server.rsplit_once('@').or(server.split_once("://")).unwrap_or(("", server));
    let host = rest.split([':', '/']).next().unwrap_or_default().trim_end_matches('.').to_ascii_lowercase();
    host == "invalid" || host.ends_with(".invalid")
}

/// The settings of the store.
pub(super) fn translate(
    variables: Variables<'_>,
    own: Own,
    choice: &BackendChoice,
    translation: &mut Translation,
) {
    if choice.backend != Backend::Redis {
        let given = STORE.into_iter().filter(|name| variables.value(name).is_some());
        translation.without_effect.extend(given.map(|name| choice.unused(name)));
        return;
    }
    if own.store.is_none() {
        translation.give("store.kind", "redis", "REDIS_URL");
    }
    match &*redis_type(variables) {
        "single" => translation.give("store.redis.mode", "standalone", "REDIS_TYPE"),
        mode @ ("sentinel" | "cluster") => translation.give("store.redis.mode", mode, "REDIS_TYPE"),
        other => translation.problems.push(format!(
            "REDIS_TYPE: `{other}` is not allowed; single, sentinel and cluster are, or {WAYS_OUT}"
        )),
    }
    translation.problems.extend(variables.wrong_switch("REDIS_TLS"));
    let (service, servers) = servers(variables);
    if let Some(service) = service {
        translation.give("store.redis.sentinel_service", service, "REDIS_URL");
        if servers.is_empty() {
            translation.problems.push("REDIS_URL: sentinels are NAME,HOST:PORT[,HOST:PORT]...".to_owned());
        }
    }
    if servers.is_empty() {
        return;
    }
    let socket = variables.value("REDIS_SOCKET_TYPE").filter(|kind| !kind.starts_with("tcp"));
    let path = servers.iter().find(|server| server.starts_with('/'));
    for (variable, value) in [("REDIS_SOCKET_TYPE", socket), ("REDIS_URL", path.copied())] {
        if let Some(value) = value {
            translation.problems.push(format!("{variable}: `{value}`: connections are TCP only; {WAYS_OUT}"));
            return;
        }
    }
    let scheme = if variables.is_on("REDIS_TLS") { "rediss" } else { "redis" };
    let mut urls = Vec::with_capacity(servers.len());
    for server in servers {
        let (given, rest) = server.split_once("://").unwrap_or(("redis", server));
        let scheme = if given == "redis" { scheme } else { given };
        // A password with an escaped character is refused as a URL.
        let login = rest.rsplit_once('@').filter(|(login, _)| {
            server.contains("://") && login.contains(':') && !login.contains('%') && urls.is_empty()
        });
        let address = match login {
            None => rest,
            Some((login, address)) => {
                if variables.value("REDIS_AUTH").is_none() {
                    log_in("REDIS_URL", login, Login::Servers, own, translation);
                }
                address
            }
        };
        urls.push(format!("{scheme}://{address}"));
    }
    translation.give("store.redis.urls", urls.join(","), "REDIS_URL");
}

/// A user and a password. No message contains the value.
pub(super) fn log_in(variable: &str, value: &str, login: Login, own: Own, translation: &mut Translation) {
    let (user_setting, file_setting, has_file) = match login {
        Login::Servers => ("store.redis.username", "store.redis.password_file", own.has_password_file),
        Login::Sentinels => (
            "store.redis.sentinel_username",
            "store.redis.sentinel_password_file",
            own.has_sentinel_password_file,
        ),
    };
    if has_file {
        translation.without_effect.push(format!("{variable} ({file_setting} has the password)"));
        return;
    }
    let (user, password) = value.split_once(':').unwrap_or(("", value));
    if password.is_empty() || user.contains(char::is_whitespace) {
        translation.problems.push(format!("{variable}: the value is neither PASSWORD nor USER:PASSWORD"));
        return;
    }
    if !user.is_empty() {
        translation.give(user_setting, user, variable);
    }
    let place = match login {
        Login::Servers => &mut translation.passwords.server,
        Login::Sentinels => &mut translation.passwords.sentinel,
    };
    *place = Some(password.to_owned());
}
