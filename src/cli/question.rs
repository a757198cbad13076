//! What to ask about, as commands take it.

use clap::{Arg, ArgAction, ArgGroup, ArgMatches, Command, value_parser};

use crate::api::{
    descriptor_text,
    proto::envoy::{
        extensions::common::ratelimit::v3::{RateLimitDescriptor, rate_limit_descriptor::Entry},
        service::ratelimit::v3::RateLimitRequest,
    },
};

/// Which set of rules applies.
pub(super) fn domain() -> Arg {
    Arg::new("domain").value_name("DOMAIN").required(true).help("Which set of rules applies")
}

/// A descriptor.
pub(super) fn descriptor() -> Arg {
    Arg::new("descriptor")
        .value_name("KEY=VALUE[,KEY=VALUE]...")
        .required(true)
        .value_parser(descriptor_text::parse)
        .help("What to ask about; \\, and \\= stand for the characters themselves")
}

/// `command` with a question: a domain, descriptors, and what is wanted of them.
pub(super) fn of(command: Command) -> Command {
    let descriptors = descriptor().action(ArgAction::Append).help(
        "What to ask about, one argument a descriptor; \\, and \\= stand for the characters themselves",
    );
    let hits = Arg::new("hits")
        .long("hits")
        .value_name("N")
        .value_parser(value_parser!(u64).range(1..))
        .help("How many hits to take [default: 1]");
    let look = Arg::new("look").long("look").action(ArgAction::SetTrue).help("Take nothing, only look");
    let refund = Arg::new("refund")
        .long("refund")
        .value_name("N")
        .value_parser(value_parser!(u64).range(1..))
        .help("How many hits to give back");
    let json = Arg::new("json").long("json").action(ArgAction::SetTrue).help("Print the answer as JSON");
    command
        .args([domain(), descriptors, hits, look, refund, json])
        .group(ArgGroup::new("what").args(["hits", "look", "refund"]))
}

/// The question that the arguments are.
pub(super) fn request(matches: &ArgMatches) -> RateLimitRequest {
    let domain = matches.get_one::<String>("domain").cloned().unwrap_or_default();
    let refund = matches.get_one::<u64>("refund").copied();
    let look = matches.get_flag("look").then_some(0);
    let hits = refund.or(look).or(matches.get_one::<u64>("hits").copied());
    let entries = matches.get_many::<Vec<Entry>>("descriptor").into_iter().flatten();
    let descriptors = entries.map(|entries| RateLimitDescriptor {
        entries: entries.clone(),
        limit: None,
        hits_addend: hits,
        is_negative_hits: refund.is_some(),
    });
    RateLimitRequest { domain, descriptors: descriptors.collect(), hits_addend: 0 }
}
