//! Faults on demand: what a real server does wrong, so that runners and checks can be tested against it.
//!
//! Given as `--fault NAME` or `--fault NAME=VALUE`, any number of times. Requests are counted over `/generate` and
//! `/v1/completions` from 1, in the order of their arrival; the server's own warm-up does not count.

use std::str::FromStr;
use std::time::Duration;

/// One thing to do wrong.
#[derive(Clone, Debug, PartialEq)]
pub enum Fault {
    /// `oom`: logs a traceback that ends in `torch.OutOfMemoryError` and exits 1 before it is ready.
    OutOfMemory,
    /// `hang`: answers `/health` with 503 for ever.
    Hang,
    /// `exit`: exits 3 before it is ready.
    Exit,
    /// `slow-start=SECONDS`: is ready that much later.
    SlowStart(Duration),
    /// `crash-after=N`: exits 1 without a word when request N + 1 arrives.
    CrashAfter(u64),
    /// `hang-after=N`: answers nothing at all, on any path, once request N + 1 has arrived.
    HangAfter(u64),
    /// `error-in-stream[=EVERY]`: every 4th request gets HTTP 200 and an error object as its only event.
    ErrorInStream(u64),
    /// `empty-stream[=EVERY]`: every 4th request gets HTTP 200 and a stream of nothing but `[DONE]`.
    EmptyStream(u64),
    /// `early-eos`: each request ends at half its length as if the model had said so, in spite of `ignore_eos`.
    EarlyEos,
    /// `http-500[=EVERY]`: every 4th request gets HTTP 500.
    Http500(u64),
    /// `drop[=EVERY]`: the connection of every 4th request closes after its first event.
    Drop(u64),
    /// `flush-refused`: `/flush_cache` answers 400.
    FlushRefused,
    /// `slow-info=SECONDS`: `/server_info` answers that much later.
    SlowInfo(Duration),
    /// `stall=SECONDS[@N]`: decoding pauses once, when request N (default 1) is half done.
    Stall {
        /// How long.
        pause: Duration,
        /// Which request, from 1.
        request: u64,
    },
    /// `wrong-backend`: uses (and reports) the kernel that was not asked for.
    WrongBackend,
    /// `ignore-term`: logs SIGTERM and carries on.
    IgnoreTerm,
    /// `orphan`: starts a `sleep` in its own process group that outlives it.
    Orphan,
}

/// A `--fault` that does not exist or lacks its value.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "`{0}` is not a fault; want `oom`, `hang`, `exit`, `slow-start=S`, `crash-after=N`, `hang-after=N`, \
     `error-in-stream[=EVERY]`, `empty-stream[=EVERY]`, `early-eos`, `http-500[=EVERY]`, `drop[=EVERY]`, \
     `flush-refused`, `slow-info=S`, `stall=S[@N]`, `wrong-backend`, `ignore-term` or `orphan`"
)]
pub struct UnknownFault(String);

impl FromStr for Fault {
    type Err = UnknownFault;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (name, value) = text.split_once('=').map_or((text, None), |(name, value)| (name, Some(value)));
        let fault = match (name, value) {
            ("oom", None) => Some(Self::OutOfMemory),
            ("hang", None) => Some(Self::Hang),
            ("exit", None) => Some(Self::Exit),
            ("slow-start", Some(value)) => seconds(value).map(Self::SlowStart),
            ("crash-after", Some(value)) => value.parse().ok().map(Self::CrashAfter),
            ("hang-after", Some(value)) => value.parse().ok().map(Self::HangAfter),
            ("error-in-stream", value) => every(value).map(Self::ErrorInStream),
            ("empty-stream", value) => every(value).map(Self::EmptyStream),
            ("early-eos", None) => Some(Self::EarlyEos),
            ("http-500", value) => every(value).map(Self::Http500),
            ("drop", value) => every(value).map(Self::Drop),
            ("flush-refused", None) => Some(Self::FlushRefused),
            ("slow-info", Some(value)) => seconds(value).map(Self::SlowInfo),
            ("stall", Some(value)) => stall(value),
            ("wrong-backend", None) => Some(Self::WrongBackend),
            ("ignore-term", None) => Some(Self::IgnoreTerm),
            ("orphan", None) => Some(Self::Orphan),
            _ => None,
        };
        fault.ok_or_else(|| UnknownFault(text.to_owned()))
    }
}

fn seconds(value: &str) -> Option<Duration> {
    value.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
}

fn every(value: Option<&str>) -> Option<u64> {
    value.map_or(Some(4), |value| value.parse().ok().filter(|every| *every > 0))
}

fn stall(value: &str) -> Option<Fault> {
    let (pause, request) = value.split_once('@').unwrap_or((value, "1"));
    Some(Fault::Stall { pause: seconds(pause)?, request: request.parse().ok().filter(|number| *number > 0)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_read_with_their_values() {
        let second = Duration::from_secs(1);
        assert_eq!("oom".parse(), Ok(Fault::OutOfMemory));
        assert_eq!("slow-start=1".parse(), Ok(Fault::SlowStart(second)));
        assert_eq!("drop".parse(), Ok(Fault::Drop(4)));
        assert_eq!("drop=2".parse(), Ok(Fault::Drop(2)));
        assert_eq!("stall=1.0".parse(), Ok(Fault::Stall { pause: second, request: 1 }));
        assert_eq!("stall=1@3".parse(), Ok(Fault::Stall { pause: second, request: 3 }));
    }

    #[test]
    fn anything_else_is_refused_by_name() {
        for text in ["", "oops", "oom=1", "slow-start", "slow-start=-1", "drop=0", "crash-after=", "stall=1@0"] {
            assert_eq!(text.parse::<Fault>(), Err(UnknownFault(text.into())), "{text}");
        }
    }
}
