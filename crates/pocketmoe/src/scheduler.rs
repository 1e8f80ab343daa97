//! Continuous batching: one thread that owns the model, the cache and all sequences.
//!
//! Each turn takes what has arrived, then runs one prefill step when a prompt is due, else one decode step. A request is
//! admitted in order of arrival when a place and all the slots it can ever need are there, so nothing is retracted.

use crate::forward::{Cache, Mixture, Row};
use crate::log::Log;
use crate::metrics::{Metrics, locked};
use crate::model::{Model, VOCABULARY};
use crate::prefix::{NodeId, Prefix, Slots};
use crate::router::Oea;
use crate::sampling::{Sampler, Sampling};
use crate::vocabulary::END;
use std::collections::VecDeque;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;

/// Why a sequence ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Finish {
    /// It has as many tokens as were asked for.
    Length,
    /// The end token.
    Stop,
}

/// A new token of a sequence.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Event {
    /// Its id.
    pub(crate) token: u32,
    /// Tokens of the prompt that came from the prefix cache.
    pub(crate) cached: usize,
    /// Set on the last token.
    pub(crate) finish: Option<Finish>,
}

/// Who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// Request number so much over the network, from 1.
    Client(u64),
    /// The server itself, once, before it is ready.
    WarmUp,
    /// `/health_generate`: neither counted nor cached.
    Probe,
}

/// A sequence to generate. The prompt is not empty and, with the output, fits the cache and the context.
pub(crate) struct Request {
    /// Ids of the prompt.
    pub(crate) prompt: Vec<u32>,
    /// Tokens to generate, at least 1.
    pub(crate) max_new_tokens: usize,
    /// Carry on after the end token.
    pub(crate) ignore_eos: bool,
    /// End after so many tokens as if the model had said so (fault `early-eos`).
    pub(crate) stop_at: Option<usize>,
    /// How tokens are chosen.
    pub(crate) sampling: Sampling,
    /// Who asks.
    pub(crate) origin: Origin,
    /// Where tokens go; a closed channel aborts the request.
    pub(crate) events: UnboundedSender<Event>,
    /// When it arrived.
    pub(crate) arrived: Instant,
}

/// What the scheduler is told.
pub(crate) enum Command {
    /// Generate.
    Generate(Request),
    /// Empty the prefix cache, and say whether that was possible.
    Flush(oneshot::Sender<bool>),
}

/// Settings of the scheduler.
pub(crate) struct Settings {
    /// Sequences that may run together.
    pub(crate) max_running_requests: usize,
    /// Tokens of prompts in one prefill step.
    pub(crate) chunked_prefill_size: usize,
    /// Slots of the cache.
    pub(crate) max_total_tokens: usize,
    /// Whether prefixes are kept.
    pub(crate) prefixes: Prefixes,
    /// Decode steps between two lines of the log.
    pub(crate) decode_log_interval: u64,
    /// How experts are computed.
    pub(crate) mixture: Mixture,
    /// Opportunistic expert activation.
    pub(crate) oea: Option<Oea>,
    /// Seed of the sampling.
    pub(crate) random_seed: u64,
    /// Fault `stall`.
    pub(crate) stall: Option<(Duration, u64)>,
}

/// Whether the prefix cache is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Prefixes {
    /// Kept and reused.
    Kept,
    /// `--disable-radix-cache`.
    Dropped,
}

/// A sequence that has its slots.
struct Sequence {
    request: Request,
    sampler: Sampler,
    /// Prompt, then output.
    tokens: Vec<u32>,
    /// Slots of all tokens it can ever have.
    slots: Vec<u32>,
    /// Leading slots that belong to the prefix tree.
    shared: usize,
    /// Locked end of the shared part.
    node: NodeId,
    /// Leading tokens whose keys and values are in the cache.
    computed: usize,
    cached: usize,
    last_token: Instant,
}

impl Sequence {
    fn outputs(&self) -> usize {
        self.tokens.len() - self.request.prompt.len()
    }

    fn keeps_prefix(&self, prefixes: Prefixes) -> bool {
        prefixes == Prefixes::Kept && self.request.origin != Origin::Probe
    }
}

/// The engine's thread.
pub(crate) struct Scheduler {
    model: Model,
    cache: Cache,
    slots: Slots,
    settings: Settings,
    commands: Receiver<Command>,
    metrics: Arc<Mutex<Metrics>>,
    log: Arc<Log>,
    waiting: VecDeque<Request>,
    prefilling: Vec<Sequence>,
    running: Vec<Sequence>,
    stalled: bool,
    logged: Instant,
    logged_tokens: u64,
    generated: u64,
    last_prefill: Instant,
}

impl Scheduler {
    /// A scheduler with an empty cache.
    pub(crate) fn new(
        model: Model,
        settings: Settings,
        commands: Receiver<Command>,
        metrics: Arc<Mutex<Metrics>>,
        log: Arc<Log>,
    ) -> Self {
        let cache = Cache::new(model.dimensions(), settings.max_total_tokens);
        let slots = Slots::new(settings.max_total_tokens);
        let now = Instant::now();
        Self {
            model,
            cache,
            slots,
            settings,
            commands,
            metrics,
            log,
            waiting: VecDeque::new(),
            prefilling: Vec::new(),
            running: Vec::new(),
            stalled: false,
            logged: now,
            logged_tokens: 0,
            generated: 0,
            last_prefill: now,
        }
    }

    /// Serves until every sender of commands is gone.
    pub(crate) fn run(mut self) {
        loop {
            if self.is_idle() {
                self.publish();
                match self.commands.recv() {
                    Ok(command) => self.obey(command),
                    Err(_) => return,
                }
            }
            while let Ok(command) = self.commands.try_recv() {
                self.obey(command);
            }
            self.turn();
        }
    }

    fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.prefilling.is_empty() && self.running.is_empty()
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Generate(request) => self.waiting.push_back(request),
            Command::Flush(answer) => {
                let possible = self.is_idle();
                if possible {
                    self.slots.flush();
                    self.count(|metrics| metrics.flushes += 1);
                    self.log.line(format_args!("Cache flushed successfully!"));
                } else {
                    let (running, waiting) = (self.running.len() + self.prefilling.len(), self.waiting.len());
                    self.log.line(format_args!(
                        "Cache not flushed because there are pending requests. #queue-req: {waiting}, #running-req: {running}"
                    ));
                }
                // Who asked may have gone away.
                let _ = answer.send(possible);
            }
        }
    }

    /// One step.
    fn turn(&mut self) {
        self.drop_closed();
        if !self.prefill() && !self.running.is_empty() {
            self.decode();
        }
        self.publish();
    }

    fn count(&self, change: impl FnOnce(&mut Metrics)) {
        change(&mut locked(&self.metrics));
    }

    /// Tokens that hold slots for running sequences, and the gauges.
    fn publish(&self) {
        let used = self.used();
        self.count(|metrics| {
            metrics.running = self.running.len() + self.prefilling.len();
            metrics.waiting = self.waiting.len();
            metrics.used_tokens = used;
            metrics.capacity = self.slots.capacity();
        });
    }

    fn used(&self) -> usize {
        let own = self.running.iter().chain(&self.prefilling).map(|sequence| sequence.computed - sequence.shared);
        self.slots.locked() + own.sum::<usize>()
    }

    /// Gives up requests whose client went away.
    fn drop_closed(&mut self) {
        let before = self.waiting.len();
        self.waiting.retain(|request| !request.events.is_closed());
        let mut aborted = (before - self.waiting.len()) as u64;
        let closed = |sequence: &mut Sequence| sequence.request.events.is_closed();
        let gone: Vec<_> = self.prefilling.extract_if(.., closed).chain(self.running.extract_if(.., closed)).collect();
        for sequence in gone {
            aborted += 1;
            self.slots.release(&sequence.slots[sequence.shared..]);
            self.slots.unlock(sequence.node);
        }
        if aborted > 0 {
            self.count(|metrics| metrics.aborted += aborted);
        }
    }

    /// Moves the first waiting request to the prefilling ones, if a place and slots are there.
    fn admit(&mut self) -> bool {
        if self.running.len() + self.prefilling.len() >= self.settings.max_running_requests {
            return false;
        }
        let Some(request) = self.waiting.front() else { return false };
        let kept = self.settings.prefixes == Prefixes::Kept && request.origin != Origin::Probe;
        // The last token of the prompt is always computed: its logits give the first output.
        let known = if kept { &request.prompt[..request.prompt.len() - 1] } else { &[][..] };
        let Prefix { mut slots, node } = self.slots.find(known);
        let shared = slots.len();
        // The last output needs no slot: nothing is computed from it.
        let Some(mut own) = self.slots.take(request.prompt.len() + request.max_new_tokens - 1 - shared) else {
            self.slots.unlock(node);
            return false;
        };
        slots.append(&mut own);
        let Some(request) = self.waiting.pop_front() else { return false };
        let queued = request.arrived.elapsed().as_secs_f64();
        if request.origin != Origin::Probe {
            self.count(|metrics| metrics.queue.observe(queued));
        }
        let number = if let Origin::Client(number) = request.origin { number } else { 0 };
        self.prefilling.push(Sequence {
            sampler: Sampler::new(request.sampling, self.settings.random_seed, number),
            tokens: request.prompt.clone(),
            last_token: request.arrived,
            request,
            slots,
            shared,
            node,
            computed: shared,
            cached: shared,
        });
        true
    }

    /// Computes up to a chunk of prompt tokens; false when no prompt is due.
    fn prefill(&mut self) -> bool {
        let mut budget = self.settings.chunked_prefill_size;
        let (mut parts, mut cached) = (Vec::new(), 0);
        let mut next = 0;
        while budget > 0 {
            if next == self.prefilling.len() {
                if !self.admit() {
                    break;
                }
                cached += self.prefilling[next].cached;
            }
            let sequence = &self.prefilling[next];
            let end = sequence.tokens.len().min(sequence.computed.saturating_add(budget));
            budget -= end - sequence.computed;
            parts.push(sequence.computed..end);
            next += 1;
        }
        if parts.is_empty() {
            return false;
        }
        self.log_prefill(&parts, cached);
        let (mut rows, mut wanted) = (Vec::new(), Vec::new());
        for (sequence, part) in self.prefilling.iter().zip(&parts) {
            rows.extend(
                part.clone().map(|place| Row { token: sequence.tokens[place], slots: &sequence.slots[..=place] }),
            );
            if part.end == sequence.tokens.len() {
                wanted.push(rows.len() - 1);
            }
        }
        let output = self.model.forward(&mut self.cache, &rows, &wanted, self.settings.mixture);
        self.count(|metrics| metrics.prefill_steps += 1);
        for (sequence, part) in self.prefilling.iter_mut().zip(&parts) {
            sequence.computed = part.end;
        }
        let whole = |sequence: &mut Sequence| sequence.computed == sequence.tokens.len();
        let mut done: Vec<Sequence> = self.prefilling.extract_if(.., whole).collect();
        for sequence in &mut done {
            if sequence.keeps_prefix(self.settings.prefixes) {
                self.share(sequence);
            }
        }
        self.generated += done.len() as u64;
        self.emit(done, &output.logits);
        true
    }

    /// Hands what a sequence has computed to the prefix tree.
    fn share(&mut self, sequence: &mut Sequence) {
        let computed = sequence.computed;
        let node = self.slots.insert(&sequence.tokens[..computed], &mut sequence.slots[..computed], sequence.shared);
        self.slots.unlock(sequence.node);
        (sequence.node, sequence.shared) = (node, computed);
    }

    fn log_prefill(&mut self, parts: &[std::ops::Range<usize>], cached: usize) {
        let tokens: usize = parts.iter().map(ExactSizeIterator::len).sum();
        let pending: usize = self
            .prefilling
            .iter()
            .zip(parts)
            .map(|(sequence, part)| sequence.tokens.len() - part.end)
            .chain(self.waiting.iter().map(|request| request.prompt.len()))
            .sum();
        let rate = tokens as f64 / self.last_prefill.elapsed().as_secs_f64().max(1e-9);
        self.last_prefill = Instant::now();
        self.log.line(format_args!(
            "Prefill batch, #new-seq: {}, #new-token: {tokens}, #cached-token: {cached}, token usage: {:.2}, \
             #running-req: {}, #queue-req: {}, #pending-token: {pending}, cuda graph: False, \
             input throughput (token/s): {rate:.2}",
            parts.len(),
            self.used() as f64 / self.slots.capacity() as f64,
            self.running.len(),
            self.waiting.len(),
        ));
    }

    /// Computes the next token of every running sequence.
    fn decode(&mut self) {
        self.stall();
        let rows: Vec<Row<'_>> = self
            .running
            .iter()
            .map(|sequence| Row {
                token: sequence.tokens[sequence.computed],
                slots: &sequence.slots[..=sequence.computed],
            })
            .collect();
        let wanted: Vec<usize> = (0..rows.len()).collect();
        let oea = self.settings.oea.filter(|oea| rows.len() >= oea.min_batch);
        let mixture = Mixture { k0: oea.map(|oea| oea.k0), ..self.settings.mixture };
        let output = self.model.forward(&mut self.cache, &rows, &wanted, mixture);
        let steps = {
            let mut metrics = locked(&self.metrics);
            metrics.decode_steps += 1;
            metrics.oea_steps += u64::from(oea.is_some());
            metrics.decode_experts_read += output.experts_read as u64;
            metrics.decode_steps
        };
        let mut batch = std::mem::take(&mut self.running);
        for sequence in &mut batch {
            sequence.computed += 1;
        }
        let size = batch.len();
        let tokens = self.used() + batch.iter().map(|sequence| sequence.computed - sequence.shared).sum::<usize>();
        self.generated += size as u64;
        // Before the tokens are sent, so that who has them all can read the line.
        if steps.is_multiple_of(self.settings.decode_log_interval) {
            self.log_decode(size, tokens);
        }
        self.emit(batch, &output.logits);
    }

    fn log_decode(&mut self, running: usize, tokens: usize) {
        let rate = (self.generated - self.logged_tokens) as f64 / self.logged.elapsed().as_secs_f64().max(1e-9);
        (self.logged, self.logged_tokens) = (Instant::now(), self.generated);
        self.count(|metrics| metrics.gen_throughput = rate);
        self.log.line(format_args!(
            "Decode batch, #running-req: {running}, #token: {tokens}, token usage: {:.2}, cuda graph: False, \
             gen throughput (token/s): {rate:.2}, #queue-req: {}",
            tokens as f64 / self.slots.capacity() as f64,
            self.waiting.len(),
        ));
    }

    /// The fault `stall`.
    fn stall(&mut self) {
        let Some((pause, request)) = self.settings.stall.filter(|_| !self.stalled) else { return };
        let half = |sequence: &Sequence| {
            sequence.request.origin == Origin::Client(request)
                && 2 * sequence.outputs() >= sequence.request.max_new_tokens
        };
        if self.running.iter().any(half) {
            self.stalled = true;
            std::thread::sleep(pause);
        }
    }

    /// Chooses and sends the next token of each sequence; those that go on are running.
    fn emit(&mut self, batch: Vec<Sequence>, logits: &[f32]) {
        for (mut sequence, logits) in batch.into_iter().zip(logits.chunks_exact(VOCABULARY)) {
            let token = sequence.sampler.choose(logits);
            sequence.tokens.push(token);
            let request = &sequence.request;
            let finish = if request.stop_at == Some(sequence.outputs()) || (token == END && !request.ignore_eos) {
                Some(Finish::Stop)
            } else {
                (sequence.outputs() == request.max_new_tokens).then_some(Finish::Length)
            };
            self.observe(&mut sequence, finish);
            let event = Event { token, cached: sequence.cached, finish };
            // A client that went away is noticed by `drop_closed`.
            let _ = sequence.request.events.send(event);
            if finish.is_some() { self.retire(sequence) } else { self.running.push(sequence) }
        }
    }

    fn observe(&self, sequence: &mut Sequence, finish: Option<Finish>) {
        let gap = sequence.last_token.elapsed().as_secs_f64();
        sequence.last_token = Instant::now();
        if sequence.request.origin == Origin::Probe {
            return;
        }
        self.count(|metrics| {
            if sequence.outputs() == 1 {
                metrics.first_token.observe(gap);
            } else {
                metrics.inter_token.observe(gap);
            }
            if finish.is_some() {
                metrics.requests += 1;
                metrics.prompt_tokens += sequence.request.prompt.len() as u64;
                metrics.cached_tokens += sequence.cached as u64;
                metrics.generation_tokens += sequence.outputs() as u64;
                metrics.end_to_end.observe(sequence.request.arrived.elapsed().as_secs_f64());
            }
        });
    }

    /// Frees what an ended sequence held; its computed tokens stay in the prefix tree.
    fn retire(&mut self, mut sequence: Sequence) {
        if sequence.keeps_prefix(self.settings.prefixes) {
            self.share(&mut sequence);
        }
        self.slots.release(&sequence.slots[sequence.shared..]);
        self.slots.unlock(sequence.node);
    }
}
