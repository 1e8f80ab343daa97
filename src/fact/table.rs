//! The table of facts: which keys there are, when two arms must agree on them, and how each is observed.
//!
//! Invariant: one row a policy, the first row whose pattern matches a key is its row, and a key without a row must agree
//! too, since what nobody thought of is the classic confound. Source: the list of facts F01 to F35 of the method.

/// When two arms agree on a fact.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Policy {
    /// The values are the same.
    Equal,
    /// Numbers within this relative tolerance; anything else must be the same.
    Near(f64),
    /// Recorded and shown; only rules look at it.
    Recorded,
    /// Has this one value in every run.
    Must(&'static str),
}

/// When a fact must have been observed in both arms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Required {
    /// Never.
    Never,
    /// For every engine. A pattern with `<name>` needs at least one key.
    Always,
    /// Where the server ran on a GPU.
    WithGpu,
    /// For an engine that says it.
    EngineTells,
}

/// What a fact is about; a factor of some classes brings other facts with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// The code that runs.
    Source,
    /// Packages, binaries, image.
    Environment,
    /// Arguments of the server.
    Argument,
    /// Environment variables of the server.
    Variable,
    /// What the server made of its inputs.
    Output,
    /// Model, draft model, adapters.
    Model,
    /// What was sent.
    Workload,
    /// Who sent it.
    Client,
    /// GPUs.
    Hardware,
    /// The machine around them.
    Host,
    /// Order, time, counters, the record itself.
    Record,
}

impl Class {
    /// Returns whether facts of this class are inputs: when all of them agree, an output that differs follows from the factor.
    pub fn is_input(self) -> bool {
        !matches!(self, Self::Output | Self::Record | Self::Workload | Self::Client)
    }

    /// Returns the patterns of facts that a factor of this class moves without being listed under `entails`.
    pub fn brings(self) -> &'static [&'static str] {
        match self {
            Self::Source => &["packages.<name>", "binaries.<name>", "server.resolved.<name>", "server.capacity.<name>"],
            // Another image or lock file is another NCCL as well.
            Self::Environment => &[
                "packages.<name>",
                "binaries.<name>",
                "server.resolved.<name>",
                "server.capacity.<name>",
                "image.digest",
                "nccl.version",
            ],
            Self::Client => &["client.<name>"],
            _ => &[],
        }
    }
}

/// One row of the table.
#[derive(Debug, Clone, Copy)]
pub struct FactRow {
    /// Its id, `F01` to `F35`.
    pub id: &'static str,
    /// Keys: `<i>` is a number, `<name>` is everything that follows.
    pub keys: &'static [&'static str],
    /// What it is about.
    pub class: Class,
    /// When two arms agree.
    pub policy: Policy,
    /// When it must be known.
    pub required: Required,
    /// What it is, in a few words.
    pub what: &'static str,
    /// How to observe it on the live system.
    pub observe: &'static str,
    /// What goes wrong when it differs in silence.
    pub why: &'static str,
}

const fn row(
    id: &'static str,
    keys: &'static [&'static str],
    class: Class,
    policy: Policy,
    required: Required,
    text: [&'static str; 3],
) -> FactRow {
    FactRow { id, keys, class, policy, required, what: text[0], observe: text[1], why: text[2] }
}

use Class as C;
use Policy::{Equal, Must, Near, Recorded};
use Required::{Always, EngineTells, Never, WithGpu};

const GPU_QUERY: &str = "`nvidia-smi -q -x` on the host, before and after the session";
const ARGV: &str = "`/proc/PID/cmdline` of the server, each flag under its full name";
const CLIENT_ARGV: &str = "the argv that started the client";

/// Every fact. KV tokens found at start move by a few tokens from launch to launch, hence 1 %.
pub static FACTS: &[FactRow] = &[
    row(
        "F01",
        &["source.commit"],
        C::Source,
        Equal,
        Always,
        [
            "commit of the code that is running",
            "from the server's interpreter: the path of the imported package, then `git -C PATH rev-parse HEAD`",
            "a stored baseline of another commit once showed 2.0x where the effect was 5.7 %",
        ],
    ),
    row(
        "F02",
        &["source.dirty"],
        C::Source,
        Equal,
        Always,
        [
            "`clean`, or the digest of the uncommitted changes",
            "`git status --porcelain=v1 -uall` and `git diff HEAD --binary`, hashed",
            "a local edit is another program under the same commit",
        ],
    ),
    row(
        "F02",
        &["source.submodules"],
        C::Source,
        Equal,
        Never,
        ["commits of the submodules", "`git submodule status --recursive`", "kernels often live in submodules"],
    ),
    row(
        "F03",
        &["source.ref", "source.ref_resolved_at"],
        C::Record,
        Recorded,
        Never,
        [
            "the ref asked for and when it was resolved",
            "`git rev-parse REF^{commit}`",
            "a branch moves while the spec does not",
        ],
    ),
    row(
        "F04",
        &["packages.<name>", "binaries.<name>"],
        C::Environment,
        Equal,
        Never,
        [
            "packages and shared objects as imported",
            "`pip inspect` in the server's interpreter; SHA-256 of the shared objects in `/proc/PID/maps`",
            "another kernel library is another program",
        ],
    ),
    row(
        "F05",
        &["image.digest"],
        C::Environment,
        Equal,
        Never,
        [
            "digest of the running container's image",
            "`docker inspect` of the running container: the image id, never the tag",
            "a tag is pushed again",
        ],
    ),
    row("F06", &["server.argv"], C::Record, Recorded, Never, ["the server's argv", ARGV, "it holds port and factor"]),
    row(
        "F06",
        &["server.args.<name>"],
        C::Argument,
        Equal,
        Always,
        ["arguments of the server", ARGV, "a second flag that moved takes part of the credit"],
    ),
    row(
        "F34",
        &["nccl.version"],
        C::Environment,
        Equal,
        Never,
        [
            "NCCL as imported",
            "`torch.cuda.nccl.version()` in the server's interpreter",
            "collectives change between versions",
        ],
    ),
    row(
        "F07",
        &["server.env.<name>"],
        C::Variable,
        Equal,
        Always,
        [
            "environment variables of the server",
            "`/proc/PID/environ` of the server and of each scheduler child, unset names too",
            "a variable left over in a shell changes kernels in silence",
        ],
    ),
    row(
        "F08",
        &["server.resolved.<name>"],
        C::Output,
        Equal,
        EngineTells,
        [
            "settings as the server resolved them",
            "`GET /server_info` (`/get_server_info` on older servers)",
            "defaults follow from hardware and memory, and change what runs",
        ],
    ),
    row(
        "F09",
        &["server.capacity.kv_tokens"],
        C::Output,
        Near(0.01),
        EngineTells,
        [
            "tokens that fit into the KV cache",
            "`max_total_num_tokens` of `/server_info`, or the start log",
            "half the cache is half the batch at high concurrency",
        ],
    ),
    row(
        "F09",
        &["server.capacity.<name>"],
        C::Output,
        Near(0.01),
        Never,
        ["capacity found at start", "`/server_info` and the start log", "it bounds the batch"],
    ),
    row(
        "F10",
        &["treatment.evidence"],
        C::Record,
        Recorded,
        Never,
        [
            "proof that the treatment is active",
            "search the server's log for the pattern under `evidence`; record `present` or `absent`",
            "an unknown variable is ignored in silence",
        ],
    ),
    row(
        "F11",
        &["model.path", "model.config_sha256"],
        C::Model,
        Equal,
        Always,
        ["which model", "the resolved path, and SHA-256 of its `config.json`", "another model is another experiment"],
    ),
    row(
        "F11",
        &["model.weight_bytes"],
        C::Record,
        Recorded,
        Never,
        [
            "bytes read per generated token at batch 1",
            "sizes of the weight files: the dense part plus the active experts",
            "it bounds the rate",
        ],
    ),
    row(
        "F11",
        &["model.<name>"],
        C::Model,
        Equal,
        Never,
        [
            "revision, tokenizer, chat template, weights, types",
            "SHA-256 of the files in the resolved path",
            "a chat template changes every prompt",
        ],
    ),
    row(
        "F12",
        &["draft.<name>", "adapter.<name>"],
        C::Model,
        Equal,
        Never,
        ["draft model and adapters", "as for the model", "acceptance, and so speed, follows from the draft"],
    ),
    row(
        "F13",
        &["workload.lengths_sha256", "workload.seed"],
        C::Workload,
        Equal,
        Always,
        [
            "which prompts were planned",
            "SHA-256 of the lines `INPUT,OUTPUT` from the client's per-request details, or generate them again by the seed",
            "other lengths are another load",
        ],
    ),
    row(
        "F16",
        &["workload.num_prompts", "workload.concurrency"],
        C::Workload,
        Equal,
        Always,
        ["how much was sent, and how much at once", CLIENT_ARGV, "fewer prompts a user weigh start and end more"],
    ),
    row(
        "F17",
        &["workload.warmup", "workload.flush_status"],
        C::Workload,
        Equal,
        Always,
        [
            "warm-up and cache flush before the window",
            "requests of the warm-up wave; HTTP status and text of `/flush_cache`",
            "a warm cache looks like a fast kernel",
        ],
    ),
    row(
        "F13",
        &["workload.<name>"],
        C::Workload,
        Equal,
        Never,
        ["the rest of the load", CLIENT_ARGV, "it is what was asked of the server"],
    ),
    row(
        "F14",
        &["client.name", "client.version"],
        C::Client,
        Equal,
        Always,
        [
            "the load client",
            "`importlib.metadata.version` in the client's interpreter",
            "clients change formulas and default seeds without changing names",
        ],
    ),
    row(
        "F14",
        &["client.argv"],
        C::Record,
        Recorded,
        Never,
        ["the client's argv", CLIENT_ARGV, "it holds port and seed"],
    ),
    row(
        "F15",
        &["client.rtt_ms", "client.host.rtt_ms", "client.cpu_share"],
        C::Record,
        Recorded,
        Never,
        [
            "load of the client itself",
            "round trip to the server; CPU time of the client over its run time",
            "a client at its limit measures itself",
        ],
    ),
    row(
        "F14",
        &["client.<name>"],
        C::Client,
        Equal,
        Never,
        [
            "module, arguments and host of the client",
            "SHA-256 of the module file, argv, `nproc`, `taskset -p`, `ulimit -n`",
            "who measures must not move with what is measured",
        ],
    ),
    row(
        "F18",
        &["gpu.count", "gpu.driver"],
        C::Hardware,
        Equal,
        WithGpu,
        ["how many GPUs, and their driver", GPU_QUERY, "a driver update changes clocks and kernels"],
    ),
    row(
        "F18",
        &["gpu.<i>.name"],
        C::Hardware,
        Equal,
        WithGpu,
        ["the card", GPU_QUERY, "another card is another machine"],
    ),
    row(
        "F18",
        &["gpu.<i>.uuid", "gpu.<i>.ecc", "gpu.<i>.mig", "gpu.topology_sha256"],
        C::Hardware,
        Equal,
        Never,
        [
            "which card in which mode",
            GPU_QUERY,
            "ECC alone costs bandwidth; two cards of one name differ by some percent",
        ],
    ),
    row(
        "F19",
        &["gpu.<i>.power_limit_w"],
        C::Hardware,
        Equal,
        Never,
        ["power limit", GPU_QUERY, "it bounds the clocks"],
    ),
    row(
        "F20",
        &["gpu.<i>.foreign_mib"],
        C::Record,
        Must("0"),
        WithGpu,
        [
            "memory that other processes hold on the card",
            "`nvidia-smi --query-compute-apps=pid,gpu_uuid,used_memory --format=csv`",
            "an orphan of an earlier launch takes memory and time",
        ],
    ),
    row(
        "F19",
        &["gpu.<i>.<name>", "gpu.<name>"],
        C::Record,
        Recorded,
        Never,
        ["clocks, power, heat, identity", "`nvidia-smi` once a second", "rules look at them"],
    ),
    row(
        "F21",
        &["host.id", "host.boot_id"],
        C::Host,
        Equal,
        Always,
        [
            "the machine and its boot",
            "`/etc/machine-id`, hashed; `/proc/sys/kernel/random/boot_id`",
            "two machines of one kind differ",
        ],
    ),
    row(
        "F21",
        &["host.kernel", "host.cpu", "host.governor", "host.numa"],
        C::Host,
        Equal,
        Never,
        [
            "kernel, processor, governor, NUMA",
            "`uname -r`, `/proc/cpuinfo`, `/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor`, `lscpu`",
            "launch overhead follows from them",
        ],
    ),
    row("F34", &["host.nodes"], C::Host, Equal, Never, ["how many nodes", "the rank map", "collectives cross them"]),
    row(
        "F21",
        &["host.<name>"],
        C::Record,
        Recorded,
        Never,
        ["load, disk, Slurm job", "`/proc/loadavg`, `df`, `scontrol show job`", "rules look at them"],
    ),
    row(
        "F22",
        &["server.identity"],
        C::Host,
        Must("own"),
        Always,
        [
            "the server that answered is ours",
            "the listening socket's inode belongs to a process whose environ carries our nonce",
            "a server left over from another launch answers too",
        ],
    ),
    // Of the class of records, not of inputs: a harness of others does not observe them, and a setting that follows from the
    // factor stays a consequence there.
    row(
        "F21",
        &["server.nice", "server.scheduling", "server.affinity", "server.limits.<name>"],
        C::Record,
        Equal,
        Never,
        [
            "priority, scheduling class, cores and limits that the kernel gives the server and its children",
            "`/proc/PID/stat`, `status` and `limits` of each process of the server",
            "a server started under `nice`, `taskset` or another `ulimit` has the same argv and another speed",
        ],
    ),
    row(
        "F22",
        &["server.pid", "server.ready_after_s", "server.ready_by"],
        C::Record,
        Recorded,
        Never,
        ["when and how it was ready", "the session's journal", "a slow first start compiles kernels"],
    ),
    row(
        "F23",
        &["server.age_s", "server.restarts"],
        C::Record,
        Recorded,
        Never,
        ["age of the server", "the session's journal", "servers slow down with age"],
    ),
    row(
        "F28",
        &["time.utc_start"],
        C::Record,
        Recorded,
        Always,
        ["when the run started", "`date -u` on the host", "order and staleness follow from it"],
    ),
    row(
        "F30",
        &["labbook.rules"],
        C::Record,
        Equal,
        Always,
        ["rule set of the harness that recorded the run", "labbook's own state", "other rules kept other runs"],
    ),
    row(
        "F30",
        &["labbook.session_sha256"],
        C::Record,
        Equal,
        Never,
        [
            "digest of the programs that ran the session",
            "labbook's own state",
            "the harness must not move with the treatment",
        ],
    ),
    row(
        "F24",
        &[
            "order.<name>",
            "cache.<name>",
            "counters.<name>",
            "time.<name>",
            "labbook.<name>",
            "purpose",
            "operator",
            "ledger.<name>",
            "redacted",
        ],
        C::Record,
        Recorded,
        Never,
        [
            "order, caches, counters, times and the record itself",
            "the session's journal and the server's counters",
            "rules look at them",
        ],
    ),
];

/// Returns the row of a key, or `None` for one that the table does not know (which must then agree as well).
pub fn row_of(key: &str) -> Option<&'static FactRow> {
    FACTS.iter().find(|row| row.keys.iter().any(|pattern| matches(pattern, key)))
}

/// Returns when two arms agree on `key`; keys that the table does not know must be equal.
pub fn policy_of(key: &str) -> Policy {
    row_of(key).map_or(Equal, |row| row.policy)
}

/// Returns what a key of the factor, or of a fact, is about.
pub fn class_of(key: &str) -> Class {
    match key {
        "environment" => C::Environment,
        "client" => C::Client,
        "server.model" => C::Model,
        key if key.starts_with("environment.") => C::Environment,
        key if key.starts_with("source.") => C::Source,
        key if key.starts_with("client.") => C::Client,
        key => row_of(key).map_or(C::Record, |row| row.class),
    }
}

/// Returns whether `key` fits `pattern`: `<i>` is one number, a final `<name>` or `*` is everything that follows.
pub fn matches(pattern: &str, key: &str) -> bool {
    // The check asks this some hundred times a pair of runs: most keys part from most patterns at the literal beginning.
    if pattern.as_bytes().first() != key.as_bytes().first() && !pattern.starts_with(['<', '*']) {
        return false;
    }
    let literal = pattern.bytes().position(|byte| matches!(byte, b'<' | b'*')).unwrap_or(pattern.len());
    if key.is_empty() || !key.starts_with(&pattern[..literal]) {
        return false;
    }
    let mut rest = key;
    let mut segments = pattern.split('.').peekable();
    while let Some(segment) = segments.next() {
        if matches!(segment, "<name>" | "*") {
            return !rest.is_empty();
        }
        let (head, tail) = rest.split_once('.').map_or((rest, None), |(head, tail)| (head, Some(tail)));
        let fits = if segment == "<i>" {
            !head.is_empty() && head.bytes().all(|byte| byte.is_ascii_digit())
        } else {
            head == segment
        };
        if !fits {
            return false;
        }
        match (segments.peek(), tail) {
            (None, None) => return true,
            (Some(_), Some(tail)) => rest = tail,
            _ => return false,
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_whole_keys_only() {
        assert!(!matches("", "") && !matches("gpu.<i>.name", "") && !matches("packages.<name>", "packages."));
        assert!(matches("gpu.<i>.name", "gpu.12.name") && !matches("gpu.<i>.name", "gpu.x.name"));
        assert!(!matches("gpu.<i>.name", "gpu.0.name.more") && !matches("gpu.<i>.name", "gpu.0"));
        assert!(matches("binaries.<name>", "binaries.common_ops.abi3.so") && matches("a.*", "a.b"));
    }

    #[test]
    fn every_fact_has_a_row_and_every_row_says_how_and_why() {
        let ids: std::collections::BTreeSet<&str> = FACTS.iter().map(|row| row.id).collect();
        // Not facts of a fingerprint: per-request tables, files, the metric's definition; counters, caches, ledger,
        // purpose and redactions share the last row.
        for id in (1..=35).filter(|id| ![25, 26, 27, 29, 31, 32, 33, 35].contains(id)) {
            assert!(ids.contains(format!("F{id:02}").as_str()), "F{id:02}");
        }
        assert!(FACTS.iter().all(|row| !row.what.is_empty() && !row.observe.is_empty() && !row.why.is_empty()));
    }

    #[test]
    fn rows_are_found_by_the_first_pattern() {
        let policy = |key| policy_of(key);
        assert_eq!(policy("source.commit"), Equal);
        assert_eq!(policy("server.capacity.kv_tokens"), Near(0.01));
        assert_eq!(policy("gpu.3.foreign_mib"), Must("0"));
        assert_eq!(policy("gpu.3.sm_clock_mhz"), Recorded);
        assert_eq!(policy("gpu.0.throttle_us.hw_thermal"), Recorded);
        assert_eq!(policy("client.host.id"), Equal);
        assert_eq!(policy("host.load"), Recorded);
        assert_eq!(policy("nobody.thought.of.it"), Equal);
        assert_eq!(class_of("source.patches"), Class::Source);
        assert_eq!(class_of("server.env.X"), Class::Variable);
        assert!(
            class_of("environment").brings().contains(&"image.digest") && class_of("server.env.X").brings().is_empty()
        );
    }
}
