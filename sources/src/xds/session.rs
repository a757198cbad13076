//! The messages to a control plane: subscription, acceptance and refusal, and their statistics.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::Relaxed},
};

use tollgate_counter::metrics::MetricCounter;
use tollgate_rules::{Contents, Location, Problem, Problems, RuleOrigin};
use tonic::Code;

use crate::xds::{
    proto::{
        envoy::{
            config::core::v3::Node,
            service::discovery::v3::{DiscoveryRequest, DiscoveryResponse},
        },
        google::rpc::Status,
    },
    resource,
};

/// The type of the resources.
const TYPE_URL: &str = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig";
/// The maximum length of the problems in a refusal: servers read messages of up to 4 MiB.
const REFUSAL_BYTES_MAX: usize = 256 * 1024;

/// What this client has told a control plane.
#[derive(Debug)]
pub(super) struct XdsSession {
    node: Node,
    // Of this stream. Versions of an earlier stream mean nothing: a control plane that was restarted counts anew, and
    // does not answer a version that it considers current.
    accepted_version: String,
    // The fingerprint of the contents that were refused last, if none were accepted since.
    refused: Option<(u128, Arc<Problems>)>,
    /// The number of answers so far, on all streams.
    pub(super) answers: u64,
}

impl XdsSession {
    pub(super) fn new(node_id: &str, metadata: &[(String, String)]) -> Self {
        let fields = metadata.iter().map(|(name, value)| (name.clone(), value.clone().into()));
        let metadata = (!metadata.is_empty()).then(|| prost_types::Struct { fields: fields.collect() });
        let node = Node {
            id: node_id.to_owned(),
            metadata,
            user_agent_name: "tollgate".to_owned(),
            user_agent_version: env!("CARGO_PKG_VERSION").to_owned(),
        };
        Self { node, accepted_version: String::new(), refused: None, answers: 0 }
    }

    /// The first request of a new stream: all resources, as if none were known.
    pub(super) fn subscribe(&mut self) -> DiscoveryRequest {
        self.accepted_version.clear();
        DiscoveryRequest {
            node: Some(self.node.clone()),
            type_url: TYPE_URL.to_owned(),
            ..DiscoveryRequest::default()
        }
    }

    /// The problems of contents with this fingerprint, if they were refused last.
    pub(super) fn refused(&self, fingerprint: u128) -> Option<Arc<Problems>> {
        let (refused, problems) = self.refused.as_ref()?;
        (*refused == fingerprint).then(|| problems.clone())
    }

    /// Answers a response, whose rules are active or have problems.
    pub(super) fn answer(
        &mut self,
        response: &DiscoveryResponse,
        fingerprint: u128,
        outcome: Result<(), Arc<Problems>>,
    ) -> DiscoveryRequest {
        self.answers += 1;
        let error_detail = match outcome {
            Ok(()) => {
                self.refused = None;
                self.accepted_version.clone_from(&response.version_info);
                None
            }
            Err(problems) => {
                let message = shortened(problems.to_string());
                self.refused = Some((fingerprint, problems));
                Some(Status { code: Code::InvalidArgument.into(), message, details: Vec::new() })
            }
        };
        DiscoveryRequest {
            version_info: self.accepted_version.clone(),
            node: Some(self.node.clone()),
            type_url: TYPE_URL.to_owned(),
            response_nonce: response.nonce.clone(),
            error_detail,
            ..DiscoveryRequest::default()
        }
    }
}

/// The resources of a response, by name: their order means nothing.
pub(super) fn contents(response: &mut DiscoveryResponse) -> Contents {
    let mut problems = Problems::default();
    let mut refuse = |name: String, what: String| problems.push(problem(name, what));
    if response.type_url != TYPE_URL {
        refuse(String::new(), format!("the type of the response is {}, not {TYPE_URL}", response.type_url));
    }
    let mut named = Vec::with_capacity(response.resources.len());
    for resource in std::mem::take(&mut response.resources) {
        let name = resource::name(&resource.value);
        if resource.type_url != TYPE_URL {
            refuse(name, format!("the type is {}, not {TYPE_URL}", resource.type_url));
        } else {
            named.push((name, resource.value));
        }
    }
    named.sort();
    let sources = named.into_iter().map(|(_, bytes)| resource::source(bytes)).collect();
    Contents { sources, problems }
}

/// A problem of the resource with this name as a whole.
fn problem(name: String, what: String) -> Problem {
    let origin = RuleOrigin::Resource { name: name.into(), locations: Vec::new() };
    Problem { location: Location::whole(Arc::new(origin)), what }
}

/// The problem of rules that could not be compiled, for no fault of theirs.
pub(super) fn not_compiled() -> Arc<Problems> {
    let mut problems = Problems::default();
    problems.push(problem(String::new(), "the rules could not be compiled; the log says why".to_owned()));
    Arc::new(problems)
}

/// The beginning of a text that may be too long for a message.
fn shortened(mut text: String) -> String {
    const END: &str = "\nand more";
    if text.len() > REFUSAL_BYTES_MAX {
        text.truncate(text.floor_char_boundary(REFUSAL_BYTES_MAX - END.len()));
        text.push_str(END);
    }
    text
}

/// What a client of a control plane counts.
#[derive(Debug, Default)]
pub struct XdsStats {
    pub(super) is_connected: AtomicBool,
    /// Connections that were made.
    pub connections: MetricCounter,
    /// Responses whose rules are or were active.
    pub accepted: MetricCounter,
    /// Responses whose rules were refused.
    pub refused: MetricCounter,
}

impl XdsStats {
    /// Whether the control plane is connected.
    pub fn is_connected(&self) -> bool {
        self.is_connected.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn response(version: &str, nonce: &str) -> DiscoveryResponse {
        DiscoveryResponse {
            version_info: version.to_owned(),
            nonce: nonce.to_owned(),
            ..DiscoveryResponse::default()
        }
    }

    fn refusal() -> Result<(), Arc<Problems>> {
        Err(not_compiled())
    }

    #[test]
    fn new_stream_begins_without_version_and_nonce() {
        let mut session = XdsSession::new("n", &[("zone".to_owned(), "a".to_owned())]);
        session.subscribe();
        session.answer(&response("7", "1"), 1, Ok(()));
        let first = session.subscribe();
        assert_eq!((&*first.version_info, &*first.response_nonce, first.error_detail), ("", "", None));
        let node = first.node.unwrap();
        assert_eq!(node.id, "n");
        assert_eq!(node.metadata.unwrap().fields["zone"], "a".to_owned().into());
        let refused = session.answer(&response("7", "1"), 2, refusal());
        assert_eq!(refused.version_info, "", "nothing was accepted on this stream");
    }

    #[test]
    fn refusal_has_last_accepted_version_and_nonce_of_response() {
        let mut session = XdsSession::new("n", &[]);
        let accepted = session.answer(&response("1", "a"), 1, Ok(()));
        assert_eq!((&*accepted.version_info, &*accepted.response_nonce), ("1", "a"));
        let refused = session.answer(&response("2", "b"), 2, refusal());
        assert_eq!((&*refused.version_info, &*refused.response_nonce), ("1", "b"));
        let status = refused.error_detail.unwrap();
        assert_eq!(status.code, 3);
        assert!(status.message.contains("could not be compiled"), "{}", status.message);
    }

    #[test]
    fn refused_contents_are_known_until_others_are_accepted() {
        let mut session = XdsSession::new("n", &[]);
        session.answer(&response("2", "b"), 2, refusal());
        assert!(session.refused(2).is_some() && session.refused(1).is_none());
        session.answer(&response("3", "c"), 3, Ok(()));
        assert!(session.refused(2).is_none());
    }

    #[test]
    fn resources_of_any_order_have_one_content() {
        let resource = |name: &str, type_url: &str| prost_types::Any {
            type_url: type_url.to_owned(),
            // Field 1 is the name.
            value: [&[10, 1], name.as_bytes()].concat(),
        };
        let of = |resources: Vec<prost_types::Any>| {
            contents(&mut DiscoveryResponse {
                type_url: TYPE_URL.to_owned(),
                resources,
                ..response("1", "a")
            })
        };
        let [a, b] = ["a", "b"].map(|name| resource(name, TYPE_URL));
        assert_eq!(of(vec![a.clone(), b.clone()]), of(vec![b, a]));
        let other = of(vec![resource("c", "type.googleapis.com/other")]);
        assert_eq!(
            other.problems.to_string(),
            format!("resource c: the type is type.googleapis.com/other, not {TYPE_URL}")
        );
    }

    #[test]
    fn long_refusal_is_shortened_at_a_character() {
        let text = shortened("\u{e9}".repeat(REFUSAL_BYTES_MAX));
        assert!(text.len() <= REFUSAL_BYTES_MAX && text.ends_with("\nand more"));
        assert_eq!(shortened("short".to_owned()), "short");
    }
}
