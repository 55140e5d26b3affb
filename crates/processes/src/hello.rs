//! The first message on a connection, and rank 0's answer.
//!
//! ```text
//! hello:   "HOLDALL\n" | token 32 | length 4 | purpose 1, rank 4, size 4, local rank 5, local size 5, version, host, address
//! answer:  length 4 | 0, whether bulk data goes by TCP 1, for every rank: host, address, local rank 4, local size 4
//!                   | 1, why not
//! ```
//!
//! A connection with a wrong token gets no answer. Lengths are bounded, and nothing is used before the token is compared.

use crate::wire::{Malformed, Reader, put_counted, put_text, put_u32};

const MAGIC: &[u8; 8] = b"HOLDALL\n";
pub(crate) const TOKEN_BYTES: usize = 32;
/// Length of the fixed part: magic, token and length of the details.
pub(crate) const PREFIX_BYTES: usize = MAGIC.len() + TOKEN_BYTES + 4;
pub(crate) const MOST_DETAILS: usize = 1024;
const MOST_NAME: usize = 255;
const MOST_REASON: usize = 1 << 16;
/// Large enough for an answer to [`MOST_PROCESSES`] processes.
pub(crate) const MOST_ANSWER: usize = 1 << 24;
/// Largest group.
pub const MOST_PROCESSES: usize = 4096;

/// The secret that all processes of a job share.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Token(pub [u8; TOKEN_BYTES]);

impl Token {
    /// A token of random bytes.
    pub fn random() -> Result<Token, getrandom::Error> {
        let mut bytes = [0; TOKEN_BYTES];
        getrandom::fill(&mut bytes)?;
        Ok(Token(bytes))
    }

    /// Constant-time comparison.
    pub fn matches(&self, other: &[u8; TOKEN_BYTES]) -> bool {
        let differences = self.0.iter().zip(other).map(|(a, b)| a ^ b);
        std::hint::black_box(differences.fold(0, |all, bits| all | bits)) == 0
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectionPurpose {
    Control = 1,
    Bulk = 2,
}

/// The introduction of a process on a new connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    pub purpose: ConnectionPurpose,
    pub rank: usize,
    pub size: usize,
    pub local_rank: Option<usize>,
    pub local_size: Option<usize>,
    /// Holdall's version.
    pub version: String,
    pub host: String,
    /// Address of the process's own listener; may be empty.
    pub address: String,
}

impl Hello {
    pub fn encode(&self, token: &Token) -> Vec<u8> {
        let mut details = vec![self.purpose as u8];
        put_u32(&mut details, self.rank);
        put_u32(&mut details, self.size);
        for number in [self.local_rank, self.local_size] {
            details.push(u8::from(number.is_some()));
            put_u32(&mut details, number.unwrap_or(0));
        }
        for text in [&self.version, &self.host, &self.address] {
            put_text(&mut details, text, MOST_NAME);
        }
        let mut bytes = MAGIC.to_vec();
        bytes.extend(token.0);
        put_counted(&mut bytes, &details);
        bytes
    }

    /// Length of the details after a prefix, if the token is right.
    pub fn parse_prefix(prefix: &[u8; PREFIX_BYTES], token: &Token) -> Result<usize, NotAHello> {
        let mut reader = Reader::new(prefix);
        if reader.bytes(MAGIC.len())? != MAGIC {
            return Err(NotAHello::Garbage);
        }
        let theirs = reader.bytes(TOKEN_BYTES)?;
        let theirs: &[u8; TOKEN_BYTES] = theirs.try_into().map_err(|_| Malformed)?;
        if !token.matches(theirs) {
            return Err(NotAHello::WrongToken);
        }
        let num_details = reader.u32()? as usize;
        if num_details > MOST_DETAILS {
            return Err(NotAHello::Garbage);
        }
        Ok(num_details)
    }

    pub fn parse_details(details: &[u8]) -> Result<Hello, NotAHello> {
        let mut reader = Reader::new(details);
        let purpose = match reader.u8()? {
            1 => ConnectionPurpose::Control,
            2 => ConnectionPurpose::Bulk,
            _ => return Err(NotAHello::Garbage),
        };
        let [rank, size] = [reader.u32()? as usize, reader.u32()? as usize];
        let mut optional = || -> Result<Option<usize>, NotAHello> {
            let is_there = reader.u8()?;
            let number = reader.u32()? as usize;
            match (is_there, number) {
                (0, 0) => Ok(None),
                (1, number) => Ok(Some(number)),
                _ => Err(NotAHello::Garbage),
            }
        };
        let [local_rank, local_size] = [optional()?, optional()?];
        let hello = Hello {
            purpose,
            rank,
            size,
            local_rank,
            local_size,
            version: reader.text(MOST_NAME)?,
            host: reader.text(MOST_NAME)?,
            address: reader.text(MOST_NAME)?,
        };
        reader.end()?;
        Ok(hello)
    }
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NotAHello {
    Garbage,
    WrongToken,
}

impl From<Malformed> for NotAHello {
    fn from(_: Malformed) -> NotAHello {
        NotAHello::Garbage
    }
}

/// A process's entry in the member list that rank 0 sends to all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Member {
    pub host: String,
    pub address: String,
    pub local_rank: usize,
    pub local_size: usize,
}

/// Rank 0's answer to all: the group is complete, or cannot be.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Welcome(Vec<Member>),
    Refused(String),
}

impl Answer {
    pub fn encode(&self) -> Vec<u8> {
        let mut body = Vec::new();
        match self {
            Answer::Welcome(members) => {
                body.push(0);
                put_u32(&mut body, members.len());
                for member in members {
                    put_text(&mut body, &member.host, MOST_NAME);
                    put_text(&mut body, &member.address, MOST_NAME);
                    put_u32(&mut body, member.local_rank);
                    put_u32(&mut body, member.local_size);
                }
            }
            Answer::Refused(reason) => {
                body.push(1);
                put_text(&mut body, reason, MOST_REASON);
            }
        }
        let mut bytes = Vec::new();
        put_counted(&mut bytes, &body);
        bytes
    }

    pub fn parse(body: &[u8]) -> Result<Answer, Malformed> {
        let mut reader = Reader::new(body);
        let answer = match reader.u8()? {
            0 => {
                let count = reader.u32()? as usize;
                if count > MOST_PROCESSES {
                    return Err(Malformed);
                }
                let members: Result<Vec<Member>, Malformed> = (0..count)
                    .map(|_| {
                        Ok(Member {
                            host: reader.text(MOST_NAME)?,
                            address: reader.text(MOST_NAME)?,
                            local_rank: reader.u32()? as usize,
                            local_size: reader.u32()? as usize,
                        })
                    })
                    .collect();
                Answer::Welcome(members?)
            }
            1 => Answer::Refused(reader.text(MOST_REASON)?),
            _ => return Err(Malformed),
        };
        reader.end()?;
        Ok(answer)
    }
}
