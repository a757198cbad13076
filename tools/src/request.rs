//! The arguments for a rate limit request.

use clap::{Arg, ArgAction, ArgGroup, ArgMatches, Command, value_parser};
use tollgate_wire::{
    descriptor_text,
    proto::envoy::{
        extensions::common::ratelimit::v3::{RateLimitDescriptor, rate_limit_descriptor::Entry},
        service::ratelimit::v3::RateLimitRequest,
    },
};

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
    let hits = Arg::new("hits")
        .long("hits")
        .value_name("N")
        .value_parser(value_parser!(u64).range(1..))
        .help("Number of hits to charge [default: 1]");
    let peek = Arg::new("peek")
        .long("peek")
        .action(ArgAction::SetTrue)
        .help("Charge nothing, only read what is left");
    let refund = Arg::new("refund")
        .long("refund")
        .value_name("N")
        .value_parser(value_parser!(u64).range(1..))
        .help("Number of hits to refund");
    let json = Arg::new("json").long("json").action(ArgAction::SetTrue).help("Print the answer as JSON");
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
