//! Calls whose counters are partly in another replica.

use tollgate_wire::proto::tollgate::v1::{PeekRequest, RefundRequest, Request, answer::Verdict};

use crate::{
    api_v1::{client, each, remaining, request, stream::Stream, together, verdicts, with_hits},
    harness::{Service, cluster_view, replica, until_linked},
};

const RULES: &str = "
domain: shop
on_denied: charge_none
descriptors:
  - {key: user, rate_limit: {unit: year, requests_per_unit: 3, algorithm: fixed_window, lease: false}}
";
const USERS: usize = 40;

fn users(hits: u64) -> Vec<Request> {
    let user =
        |user: usize| Request { id: user.to_string(), ..with_hits(request("user", &user.to_string()), hits) };
    (0..USERS).map(user).collect()
}

async fn pair() -> [Service; 2] {
    let secret = tempfile::tempdir().unwrap();
    let first = replica(RULES, &secret, "off").await;
    let address = cluster_view(&first).await["members"][0]["address"].as_str().unwrap().to_owned();
    let second = replica(RULES, &secret, &address).await;
    until_linked(&first).await;
    until_linked(&second).await;
    [first, second]
}

#[tokio::test]
async fn replicas_answer_calls_over_counters_of_both() {
    let replicas = pair().await;
    for (index, replica) in replicas.iter().enumerate() {
        let answers = client(replica).await.check(each(users(1))).await.unwrap().into_inner().answers;
        assert_eq!(remaining(&answers), vec![vec![2 - index as u64]; USERS]);
        assert!(answers.iter().enumerate().all(|(index, answer)| answer.id == index.to_string()), "in order");
        assert!(answers.iter().all(|answer| !answer.degraded && answer.error.is_none()));
    }
    let [first, second] = &replicas;
    // More than what is left of one counter: nothing is charged, wherever the counters are.
    let mut group = users(1);
    group[USERS / 2] = with_hits(group[USERS / 2].clone(), 2);
    let answers = client(first).await.check(together(group)).await.unwrap().into_inner().answers;
    assert_eq!(verdicts(&answers), [Verdict::Denied; USERS]);
    let answers = client(second).await.peek(PeekRequest { requests: users(0) }).await.unwrap();
    assert_eq!(remaining(&answers.into_inner().answers), vec![vec![1]; USERS]);
    let answers = client(second).await.refund(RefundRequest { requests: users(1) }).await.unwrap();
    assert_eq!(remaining(&answers.into_inner().answers), vec![vec![2]; USERS]);
    let answers = client(first).await.check(together(users(2))).await.unwrap().into_inner().answers;
    assert_eq!(
        (verdicts(&answers), remaining(&answers)),
        (vec![Verdict::Allowed; USERS], vec![vec![0]; USERS])
    );
}

#[tokio::test]
async fn stream_answers_questions_over_counters_of_both_replicas() {
    let [first, _second] = pair().await;
    let mut stream = Stream::open(&first).await;
    for number in 0..60 {
        stream.ask(number, each(vec![request("user", &format!("s{number}")), request("user", "hot")])).await;
    }
    let (mut numbers, mut hot) = (Vec::new(), 0);
    for _ in 0..60 {
        let (number, response) = stream.answer().await;
        assert_eq!(response.answers[0].limits[0].remaining, 2);
        hot += usize::from(response.answers[1].verdict() == Verdict::Allowed);
        numbers.push(number);
    }
    numbers.sort_unstable();
    assert_eq!((numbers, hot), ((0..60).collect(), 3), "exactly the limit");
}
