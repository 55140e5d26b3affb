//! How fast bulk data and small messages travel between the processes of a launcher:
//!
//! ```text
//! cargo build --release -p holdall-processes --example speed
//! mpirun -n 2 target/release/examples/speed
//! ```

use std::time::Instant;

use holdall_processes::{Group, GroupError, Launch};

const ROUNDS: u32 = 10;

fn main() -> Result<(), GroupError> {
    let group = Group::start(&Launch::from_environment()?, env!("CARGO_PKG_VERSION"))?;
    for megabytes in [1, 16, 256] {
        let mut values = vec![1.0; megabytes << 18];
        let seconds = time(&group, || group.all_reduce_f32(&mut [&mut values]))?;
        say(
            &group,
            &format!(
                "sum of {megabytes} MiB: {:.2} ms, {:.2} GiB/s",
                seconds * 1e3,
                megabytes as f64 / 1024.0 / seconds
            ),
        );
        let mut parts = vec![0; (megabytes << 20) / group.size() * group.size()];
        let seconds = time(&group, || group.all_gather(&mut parts))?;
        say(
            &group,
            &format!(
                "gather of {megabytes} MiB: {:.2} ms, {:.2} GiB/s",
                seconds * 1e3,
                megabytes as f64 / 1024.0 / seconds
            ),
        );
    }
    let seconds = time(&group, || group.share(&[0; 64]).map(|_| ()))?;
    say(
        &group,
        &format!("share of 64 bytes: {:.0} us", seconds * 1e6),
    );
    Ok(())
}

/// Seconds of a call, after one that reserves what it needs.
fn time(
    group: &Group,
    mut call: impl FnMut() -> Result<(), GroupError>,
) -> Result<f64, GroupError> {
    call()?;
    group.share(&[])?;
    let began = Instant::now();
    for _ in 0..ROUNDS {
        call()?;
    }
    Ok(began.elapsed().as_secs_f64() / f64::from(ROUNDS))
}

fn say(group: &Group, text: &str) {
    if group.rank() == 0 {
        println!(
            "{} processes by {}: {text}",
            group.size(),
            group.transport().unwrap_or("nothing")
        );
    }
}
