//! The arguments for a rate limit request.

use clap::{Arg, ArgAction, ArgGroup, ArgMatches, Command, value_parser};
use tollgate_wire::{
    descriptor_text,
    proto::envoy::{
        extensions::common::ratelimit::v3::{RateLimitDescriptor, rate_limit_descriptor::Entry},
        service::ratelimit::v3::RateLimitRequest,
    },
};

use crate::command::{flag, value};

/// The domain.
pub(super) fn domain() -> Arg {
    Arg::new("domain").value_name("DOMAIN").required(true).help("Domain of the rules")
}

/// A descriptor.
pub(super) fn descriptor() -> Arg {
    Arg::new("descriptor")
        .value_name("KEY=VALUE[,KEY=VALUE]...")
        .required(true)
        .value_parser(descriptor_text::parse)
        .help("Descriptor; \\, \\= and \\\\ stand for the characters themselves, \\n and \\u{1b} for hidden ones, \\xE9 for another byte")
}

/// `command` with the arguments of a request: domain, descriptors, and the operation.
pub(super) fn with_request(command: Command) -> Command {
    let descriptors = descriptor()
        .action(ArgAction::Append)
        .help("Descriptor, may be repeated; \\, \\= and \\\\ stand for the characters themselves, \\n and \\u{1b} for hidden ones, \\xE9 for another byte");
    let number = |name, help| value(name, "N", help).value_parser(value_parser!(u64).range(1..));
    let hits = number("hits", "Number of hits to charge [default: 1]");
    let peek = flag("peek", "Charge nothing, only read what is left");
    let refund = number("refund", "Number of hits to refund");
    let json = flag("json", "Print the answer as JSON");
    command
        .args([domain(), descriptors, hits, peek, refund, json])
        .group(ArgGroup::new("what").args(["hits", "peek", "refund"]))
}

/// The request that the arguments describe.
pub(super) fn request(matches: &ArgMatches) -> RateLimitRequest {
    let domain = matches.get_one::<String>("domain").cloned().unwrap_or_default();
    let refund = matches.get_one::<u64>("refund").copied();
    let peek = matches.get_flag("peek").then_some(0);
    let hits = refund.or(peek).or(matches.get_one::<u64>("hits").copied());
    let entries = matches.get_many::<Vec<Entry>>("descriptor").into_iter().flatten();
    let descriptors = entries.map(|entries| RateLimitDescriptor {
        entries: entries.clone(),
        limit: None,
        hits_addend: hits,
        is_negative_hits: refund.is_some(),
    });
    RateLimitRequest { domain, descriptors: descriptors.collect(), hits_addend: 0 }
}
