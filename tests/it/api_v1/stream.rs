//! Questions on a stream.

use tokio::{sync::mpsc, time::timeout};
use tokio_stream::wrappers::ReceiverStream;
use tollgate_wire::proto::tollgate::v1::{
    CheckRequest, CheckResponse, Question, QuestionAnswer, Request, answer::Verdict,
    question_answer::Result as Answered,
};
use tonic::{Code, Status, Streaming};

use crate::{
    api_v1::{client, each, reason, reason_of, request, together, verdicts, with_hits},
    harness::{Service, TIMEOUT, until},
};

const RULES: &str = "
domain: shop
descriptors:
  - {key: user, rate_limit: {unit: day, requests_per_unit: 100000, algorithm: fixed_window}}
  - {key: few, rate_limit: {unit: day, requests_per_unit: 3, algorithm: fixed_window}}
";
/// The credits of a new stream.
const CREDITS: u32 = 64;

/// An open stream.
pub struct Stream {
    pub questions: mpsc::Sender<Question>,
    answers: Streaming<QuestionAnswer>,
}

impl Stream {
    /// A stream after its first message, which grants all credits.
    pub async fn open(service: &Service) -> Self {
        let (questions, sent) = mpsc::channel(2048);
        let answers =
            client(service).await.check_stream(ReceiverStream::new(sent)).await.unwrap().into_inner();
        let mut stream = Self { questions, answers };
        let first = stream.next().await.unwrap().unwrap();
        assert_eq!(first, QuestionAnswer { credits: CREDITS, ..QuestionAnswer::default() });
        stream
    }

    pub async fn ask(&self, number: u64, check: CheckRequest) {
        let question = Question { number, check: Some(check), timeout: None };
        self.questions.send(question).await.unwrap();
    }

    pub async fn next(&mut self) -> Result<Option<QuestionAnswer>, Status> {
        timeout(TIMEOUT, self.answers.message()).await.unwrap()
    }

    /// The next answer, which must have a response.
    pub async fn answer(&mut self) -> (u64, CheckResponse) {
        let answer = self.next().await.unwrap().unwrap();
        assert_eq!(answer.credits, 1);
        match answer.result {
            Some(Answered::Check(response)) => (answer.number, response),
            other => panic!("{other:?}"),
        }
    }

    /// The next answers, each with a response, by number. Questions whose counters are elsewhere may overtake each other.
    async fn answers(&mut self, count: usize) -> Vec<(u64, CheckResponse)> {
        let mut answers = Vec::new();
        while answers.len() < count {
            answers.push(self.answer().await);
        }
        answers.sort_by_key(|(number, _)| *number);
        answers
    }

    /// The next answer, which must have an error.
    async fn error(&mut self) -> (u64, String) {
        let answer = self.next().await.unwrap().unwrap();
        assert_eq!(answer.credits, 1);
        match answer.result {
            Some(Answered::Error(error)) => (answer.number, reason(&error)),
            other => panic!("{other:?}"),
        }
    }
}

fn batch(size: usize) -> Vec<Request> {
    vec![request("user", "ann"); size]
}

#[tokio::test]
async fn thousand_questions_are_answered_with_their_numbers() {
    let service = Service::start(RULES).await;
    let mut stream = Stream::open(&service).await;
    let (mut sent, mut credits, mut answers) = (0, CREDITS, Vec::new());
    for _ in 0..1_000 {
        while credits > 0 && sent < 1_000 {
            stream.ask(sent, each(batch(3))).await;
            (sent, credits) = (sent + 1, credits - 1);
        }
        answers.push(stream.answer().await);
        credits += 1;
    }
    let mut left: Vec<u64> = Vec::new();
    for (_, response) in &answers {
        assert_eq!(verdicts(&response.answers), [Verdict::Allowed; 3]);
        left.extend(response.answers.iter().map(|answer| answer.limits[0].remaining));
    }
    left.sort_unstable();
    assert_eq!(left, (97_000..100_000).collect::<Vec<u64>>(), "each request is charged once");
    answers.sort_by_key(|(number, _)| *number);
    assert!(answers.iter().map(|(number, _)| *number).eq(0..1_000));
    drop(stream.questions);
    assert_eq!(timeout(TIMEOUT, stream.answers.message()).await.unwrap().unwrap(), None, "it ends with OK");
}

#[tokio::test]
async fn questions_beyond_credits_are_answered_later() {
    let service = Service::start(RULES).await;
    let mut stream = Stream::open(&service).await;
    for number in 0..1_000 {
        stream.ask(number, each(batch(1))).await;
    }
    assert!(stream.answers(1_000).await.iter().map(|(number, _)| *number).eq(0..1_000));
}

#[tokio::test]
async fn questions_larger_than_a_frame_are_all_answered() {
    let service = Service::start(RULES).await;
    let mut stream = Stream::open(&service).await;
    // About 20 KiB each and 1 MiB together, many times the window of a stream.
    for number in 0..50 {
        let user = format!("ann-{}", "x".repeat(80));
        stream.ask(number, each(vec![request("user", &user); 200])).await;
    }
    assert!(stream.answers(50).await.iter().map(|(number, _)| *number).eq(0..50));
}

#[tokio::test]
async fn bad_question_does_not_end_the_stream() {
    let service = Service::start(RULES).await;
    let mut stream = Stream::open(&service).await;
    let bad_timeout = Question {
        number: 3,
        check: Some(each(batch(1))),
        timeout: Some(prost_types::Duration { seconds: -1, nanos: 0 }),
    };
    stream.ask(1, each(Vec::new())).await;
    stream.questions.send(Question { number: 2, check: None, timeout: None }).await.unwrap();
    stream.questions.send(bad_timeout).await.unwrap();
    stream.ask(4, each(batch(257))).await;
    stream.ask(5, together(vec![with_hits(request("few", "x"), 3), request("few", "x")])).await;
    stream.ask(6, each(vec![request("few", "x")])).await;
    let reasons = [(1, "NO_REQUESTS"), (2, "NO_REQUESTS"), (3, "INVALID_TIMEOUT"), (4, "TOO_LARGE")];
    for (number, reason) in reasons {
        assert_eq!(stream.error().await, (number, reason.to_owned()));
    }
    let answers = stream.answers(2).await;
    assert_eq!((answers[0].0, verdicts(&answers[0].1.answers)), (5, vec![Verdict::Denied; 2]));
    assert_eq!((answers[1].0, answers[1].1.answers[0].limits[0].remaining), (6, 2));
}

#[tokio::test]
async fn question_without_number_that_cannot_be_read_ends_the_stream() {
    let service = Service::start(RULES).await;
    // A `Question` whose field 1 has another wire type.
    #[derive(Clone, PartialEq, prost::Message)]
    struct Other {
        #[prost(string, tag = "1")]
        number: String,
    }
    let mut grpc = tonic::client::Grpc::new(
        tonic::transport::Channel::from_shared(format!("http://{}", service.addresses.grpc))
            .unwrap()
            .connect()
            .await
            .unwrap(),
    );
    grpc.ready().await.unwrap();
    let path = "/tollgate.v1.RateLimiter/CheckStream".parse().unwrap();
    let codec = tonic_prost::ProstCodec::<Other, QuestionAnswer>::default();
    let questions = tokio_stream::once(Other { number: "x".into() });
    let answers = grpc.streaming(tonic::Request::new(questions), path, codec).await.unwrap();
    let mut answers = answers.into_inner();
    assert_eq!(answers.message().await.unwrap().unwrap().credits, CREDITS);
    let error = answers.message().await.unwrap_err();
    assert_eq!((error.code(), reason_of(&error)), (Code::InvalidArgument, "MALFORMED".to_owned()));
}

#[tokio::test]
async fn answers_continue_after_client_has_sent_its_last_question() {
    let service = Service::start(RULES).await;
    let stream = Stream::open(&service).await;
    for number in 0..50 {
        stream.ask(number, each(batch(2))).await;
    }
    let Stream { questions, answers } = stream;
    drop(questions);
    let mut stream = Stream { questions: mpsc::channel(1).0, answers };
    assert!(stream.answers(50).await.iter().map(|(number, _)| *number).eq(0..50));
    assert_eq!(stream.next().await.unwrap(), None);
}

#[tokio::test]
async fn stream_that_client_drops_leaves_the_server_alone() {
    let service = Service::start(RULES).await;
    let stream = Stream::open(&service).await;
    stream.ask(1, each(batch(1))).await;
    drop(stream);
    until(async || (service.counters.grpc.open() == 0).then_some(())).await;
    assert_eq!(service.http("GET", "/livez", "").await.0, 200);
}

#[tokio::test]
async fn stream_ends_with_its_deadline() {
    let service = Service::start(RULES).await;
    let (_questions, sent) = mpsc::channel::<Question>(1);
    let mut request = tonic::Request::new(ReceiverStream::new(sent));
    request.metadata_mut().insert("grpc-timeout", "50m".parse().unwrap());
    // The client's own timer is not set: only the server ends the stream.
    let mut answers = client(&service).await.check_stream(request).await.unwrap().into_inner();
    assert_eq!(answers.message().await.unwrap().unwrap().credits, CREDITS);
    assert_eq!(
        timeout(TIMEOUT, answers.message()).await.unwrap().unwrap_err().code(),
        Code::DeadlineExceeded
    );
}

#[tokio::test]
async fn stream_ends_after_its_answers_when_the_server_stops() {
    let service = Service::start(RULES).await;
    let mut stream = Stream::open(&service).await;
    stream.ask(7, each(batch(1))).await;
    assert_eq!(stream.answer().await.0, 7);
    service.terminate().await;
    assert_eq!(stream.next().await.unwrap_err().code(), Code::Unavailable);
    timeout(TIMEOUT, service.task).await.unwrap().unwrap().unwrap();
}
