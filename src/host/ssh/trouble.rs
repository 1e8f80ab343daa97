//! What can be wrong with an SSH host, read from what `ssh` said, and what a person can do about it.
//!
//! Invariant: an exit status of `ssh` alone decides nothing (255 is ssh's own, and any command's); the text does, and a text that
//! is not known is shown as it is.

use crate::diagnostic::printable;

/// What is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Trouble {
    /// The host's key is not known here.
    #[error("its host key is not known here")]
    UnknownHostKey,
    /// The host's key is another than the known one.
    #[error("its host key is not the one that is known here")]
    ChangedHostKey,
    /// No key that ssh offers is accepted.
    #[error("it accepts no key that ssh offers")]
    Refused,
    /// The host wants a password or a second factor.
    #[error("it wants a password or a second factor, and nobody is there to type it")]
    Password,
    /// Its name cannot be resolved.
    #[error("its name cannot be resolved")]
    Name,
    /// No connection comes about.
    #[error("there is no connection to it")]
    NoConnection,
    /// The connection broke, or nothing came over it for too long.
    #[error("the connection broke")]
    Lost,
    /// The account's shell does not run what it is given.
    #[error("the account runs no commands")]
    Account,
    /// `ssh` does not start, or does not like its configuration.
    #[error("ssh cannot be used")]
    Program,
    /// Something that labbook needs there is absent.
    #[error("something that labbook needs is not there")]
    Missing,
    /// This program is for another kind of machine.
    #[error("this labbook does not run there")]
    Foreign,
    /// What it sent is not what was asked for.
    #[error("what it sent is refused")]
    Content,
    /// An act failed there.
    #[error("an act failed there")]
    Act,
}

impl Trouble {
    /// Reads what `ssh` said when no connection came about.
    pub(super) fn of_connecting(said: &str) -> Self {
        let has = |text: &str| said.contains(text);
        if has("REMOTE HOST IDENTIFICATION HAS CHANGED") {
            Self::ChangedHostKey
        } else if has("Host key verification failed") || has("host key is known") {
            Self::UnknownHostKey
        } else if has("Permission denied") || has("Too many authentication failures") || has("authentication methods") {
            let asks = has("password") || has("keyboard-interactive");
            if asks { Self::Password } else { Self::Refused }
        } else if has("Could not resolve hostname") {
            Self::Name
        } else if [
            "Bad configuration option",
            "Can't open user config",
            "terminating,",
            "unknown option",
            "illegal option",
        ]
        .iter()
        .any(|text| has(text))
        {
            Self::Program
        } else {
            Self::NoConnection
        }
    }

    /// Returns whether it may pass by itself: a link comes back, a refusal does not.
    pub fn may_pass(self) -> bool {
        matches!(self, Self::Name | Self::NoConnection | Self::Lost)
    }

    /// Returns what a person can do about it; `by_hand` is the `ssh` command that reaches the host.
    pub fn remedy(self, by_hand: &str) -> String {
        match self {
            Self::UnknownHostKey => format!(
                "run `{by_hand}` once by hand and compare the fingerprint it shows with the one that the host's owner tells you"
            ),
            Self::ChangedHostKey => "ask the host's owner why: if the new key is right, remove the old one with \
                                     `ssh-keygen -R` and connect once by hand"
                .to_owned(),
            Self::Refused => format!(
                "`{by_hand}` must work without a question: see `ssh-add -l`, `ssh-copy-id`, and `User` and `IdentityFile` in the \
                 ssh configuration"
            ),
            Self::Password => format!(
                "`{by_hand}` must work without a question: install a key with `ssh-copy-id`, and load it into an agent if it \
                 has a passphrase"
            ),
            Self::Name | Self::NoConnection => format!(
                "does `{by_hand}` work? The address is `address:` in labbook.yaml, the rest is in the ssh configuration \
                 (HostName, Port, ProxyJump)"
            ),
            Self::Lost => "what was started there goes on; the same command again picks it up".to_owned(),
            Self::Account => format!(
                "`{by_hand} true` must end with 0: look at the account's login shell, and at ~/.bashrc and its like, which must \
                 not end a shell that is not interactive"
            ),
            Self::Program => format!("does `{by_hand}` work?"),
            Self::Missing => "install it there; labbook adds the usual folders to the account's PATH, no others".to_owned(),
            Self::Foreign => {
                "build labbook for that machine and run it from one like it; an experiment with `engine: sglang` and the \
                 client `sglang.bench_serving` needs no labbook there"
                    .to_owned()
            }
            Self::Content => "nothing of it was kept; look at the folder there".to_owned(),
            Self::Act => format!("look with `{by_hand}`; nothing is half done, so the same command again is safe"),
        }
    }
}

/// Returns the lines of `ssh` or of a host that say something, on one line and harmless to a terminal.
pub(super) fn gist(said: &[u8]) -> String {
    const LONGEST: usize = 400;
    let text = String::from_utf8_lossy(said);
    let lines: Vec<String> = text
        .lines()
        .map(printable)
        .filter(|line| !line.is_empty() && !line.chars().all(|each| each == '@' || each.is_whitespace()))
        .collect();
    // The last lines say why.
    let joined = lines[lines.len().saturating_sub(3)..].join(" / ");
    joined.chars().take(LONGEST).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ssh_says_is_told_apart() {
        for (said, wanted) in [
            ("", Trouble::NoConnection),
            ("ssh: connect to host h port 22: Connection refused", Trouble::NoConnection),
            ("ssh: connect to host h port 22: Connection timed out", Trouble::NoConnection),
            ("kex_exchange_identification: read: Connection reset by peer", Trouble::NoConnection),
            ("ssh: Could not resolve hostname h: Name or service not known", Trouble::Name),
            (
                "No ED25519 host key is known for h and you have requested strict checking.\r\nHost key verification failed.",
                Trouble::UnknownHostKey,
            ),
            (
                "@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @\nHost key verification failed.",
                Trouble::ChangedHostKey,
            ),
            ("a@h: Permission denied (publickey).", Trouble::Refused),
            ("a@h: Permission denied (publickey,keyboard-interactive).", Trouble::Password),
            ("a@h: Permission denied (publickey,password).", Trouble::Password),
            (
                "/c: line 1: Bad configuration option: foo\n/c: terminating, 1 bad configuration options",
                Trouble::Program,
            ),
        ] {
            assert_eq!(Trouble::of_connecting(said), wanted, "{said}");
        }
    }

    #[test]
    fn a_gist_is_one_harmless_line() {
        assert_eq!(gist(b""), "");
        assert_eq!(gist(b"@@@@\r\n@ a @\n\x1b[31mb\n\nc\nd"), "\\u{1b}[31mb / c / d");
    }
}
