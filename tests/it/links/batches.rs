//! What is sent arrives, once and in order.

use crate::links::replica::{Event, Replica};

#[tokio::test]
async fn two_processes_are_linked_and_batches_go_both_ways() {
    let one = Replica::start(&[]).await;
    let two = Replica::start(&[&one.address()]).await;
    one.until_linked(&two).await;
    two.until_linked(&one).await;
    for number in 0..100_u32 {
        one.send(two.id(), number.to_string());
        two.send(one.id(), format!("back {number}"));
    }
    one.until_received(two.id(), 100).await;
    two.until_received(one.id(), 100).await;
    assert_eq!(two.received(one.id()), (0..100).map(|number| number.to_string()).collect::<Vec<_>>());
    assert_eq!(one.received(two.id()), (0..100).map(|number| format!("back {number}")).collect::<Vec<_>>());
    assert_eq!(one.events(), [Event::Linked(two.id())]);
    assert_eq!(two.events(), [Event::Linked(one.id())]);
}
