//! What happens during a run, as events: the runner emits them, a report shows them; neither calls the other.

use serde::Serialize;

/// One thing that happened. As JSON: one object a line, `event` names the kind; times in seconds, metrics in their units.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum Event {
    /// The plan that is being carried out.
    Plan {
        /// The experiment.
        experiment: String,
        /// Eight hex digits of the edition.
        edition: String,
        /// Arms in written order.
        arms: Vec<String>,
        /// Blocks planned in all.
        blocks: u32,
        /// Levels of the axis.
        levels: usize,
        /// Sessions that are still to run, primes included.
        sessions: usize,
        /// Client runs that are still to run.
        trials: usize,
        /// How long that will take, if it can be told.
        estimate_s: Option<f64>,
    },
    /// Where it runs.
    Host {
        /// Name of the host.
        host: String,
        /// Its folder for this edition.
        folder: String,
    },
    /// A session begins.
    Session {
        /// Folder name.
        session: String,
        /// Its arm.
        arm: String,
    },
    /// The server answers.
    Ready {
        /// Folder name of the session.
        session: String,
        /// From the start of the server to its first generation.
        seconds: f64,
    },
    /// A client run ended.
    Trial {
        /// Folder name of the session.
        session: String,
        /// Folder name of the trial.
        trial: String,
        /// Name of the metric shown.
        metric: String,
        /// Its value, if the row has it.
        value: Option<f64>,
        /// Unit of the value.
        unit: String,
        /// Median time to first token.
        ttft_ms: Option<f64>,
        /// Requests that succeeded.
        completed: Option<u64>,
        /// Requests asked for.
        asked: u64,
        /// How long the client ran, warm-up not counted.
        seconds: f64,
        /// Rules that fired on the run alone.
        fired: Vec<String>,
    },
    /// A session is over and sealed.
    Sealed {
        /// Folder name.
        session: String,
        /// `finished` or `failed`.
        status: String,
        /// Why it failed.
        reason: Option<String>,
        /// Ids of its runs.
        runs: Vec<String>,
        /// Last lines of the server's log, when it failed.
        tail: Vec<String>,
    },
    /// A block is queued again as a whole.
    Requeued {
        /// The block.
        block: u32,
        /// The new attempt.
        attempt: u32,
        /// What was wrong with the last one.
        because: String,
    },
    /// A host is out of reach; what runs there goes on.
    Lost {
        /// The host.
        host: String,
        /// What is known about it.
        because: String,
        /// How long it is tried again.
        deadline_s: u64,
    },
    /// It is in reach again.
    Back {
        /// The host.
        host: String,
        /// How long it was not.
        seconds: f64,
    },
    /// The plan was stopped: nothing more starts.
    Stopped {
        /// Why.
        because: String,
    },
    /// We left; the runner goes on.
    Detached {
        /// What brings one back.
        attach: String,
    },
    /// Nothing more is to do.
    Done {
        /// Sessions sealed as finished during this invocation.
        finished: usize,
        /// Sessions sealed as failed during this invocation.
        failed: usize,
        /// Blocks that have every arm.
        complete_blocks: u32,
        /// Blocks planned.
        blocks: u32,
        /// How long this invocation took.
        seconds: f64,
    },
}
