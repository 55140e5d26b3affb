//! Robustness of the message readers against arbitrary bytes. The fuzz target in `fuzz/` and the mutation test below call this.

use crate::frame::{HEADER_BYTES, Header, decode_error};
use crate::hello::{Answer, Hello, PREFIX_BYTES, TOKEN_BYTES, Token};

/// Parses bytes as the first message on a connection, as an answer to it, and as control messages. Whatever parses must serialise
/// to the same bytes.
pub fn message(bytes: &[u8]) {
    let token = Token([7; TOKEN_BYTES]);
    if let Some((prefix, details)) = bytes.split_first_chunk::<PREFIX_BYTES>() {
        let told = Hello::parse_prefix(prefix, &token);
        let details = told.ok().and_then(|length| details.get(..length));
        let hello = details.and_then(|details| Hello::parse_details(details).ok());
        if let (Some(hello), Some(details)) = (hello, details) {
            let written = hello.encode(&token);
            assert_eq!(&written[PREFIX_BYTES..], details, "{hello:?}");
        }
    }
    if let Some(body) = bytes.get(4..)
        && let Ok(answer) = Answer::parse(body)
    {
        assert_eq!(&answer.encode()[4..], body, "{answer:?}");
    }
    if let Some((header, body)) = bytes.split_first_chunk::<HEADER_BYTES>() {
        let _ = Header::parse(header);
        if let Ok(error) = decode_error(body) {
            assert!(
                error
                    .to_string()
                    .chars()
                    .all(|letter| !letter.is_control() || letter == '\n')
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::GroupError;
    use crate::frame::{FrameKind, encode_error, frame};
    use crate::hello::{ConnectionPurpose, Member};
    use holdall_files::SplitMix64;

    /// One message of every kind.
    fn messages() -> Vec<Vec<u8>> {
        let hello = Hello {
            purpose: ConnectionPurpose::Bulk,
            rank: 3,
            size: 8,
            local_rank: Some(1),
            local_size: None,
            version: "0.1.0".to_owned(),
            host: "node7".to_owned(),
            address: "10.0.0.7:40000".to_owned(),
        };
        let member = Member {
            host: "node7".to_owned(),
            ..Member::default()
        };
        let error = GroupError::Lost {
            rank: 2,
            host: "node9".to_owned(),
            seen: "nothing".to_owned(),
        };
        vec![
            hello.encode(&Token([7; TOKEN_BYTES])),
            Answer::Welcome(vec![member; 3]).encode(),
            Answer::Refused("no\nhint: yes".to_owned()).encode(),
            frame(FrameKind::Error, 0, 0, &[&encode_error(&error)]),
        ]
    }

    /// Unchanged messages parse; a changed, cut or doubled message parses or is refused, without a panic.
    #[test]
    fn mutated_messages_are_read_or_refused() {
        let messages = messages();
        messages.iter().for_each(|whole| message(whole));
        let number = |name: &str, otherwise: u64| {
            let text = std::env::var(name).ok();
            text.and_then(|text| text.parse().ok()).unwrap_or(otherwise)
        };
        let mut random = SplitMix64(number("HOLDALL_FUZZ_SEED", 1));
        for _ in 0..number("HOLDALL_FUZZ_CASES", 100_000) {
            let mut bytes = messages[random.bits() as usize % messages.len()].clone();
            for _ in 0..1 + random.bits() % 4 {
                let at = random.bits() as usize % (bytes.len() + 1);
                match random.bits() % 4 {
                    0 => bytes.truncate(at),
                    1 => bytes.insert(at, random.bits() as u8),
                    2 => bytes.extend_from_within(at..),
                    _ => {
                        if let Some(byte) = bytes.get_mut(at) {
                            *byte =
                                [0, 1, 0x7f, 0xff, random.bits() as u8][random.bits() as usize % 5];
                        }
                    }
                }
            }
            message(&bytes);
        }
    }

    #[test]
    fn long_texts_are_cut_and_control_characters_go() {
        let error = GroupError::Failed {
            rank: 1,
            host: "a\u{1b}[31mb".to_owned(),
            message: "ä".repeat(100_000),
        };
        let GroupError::Failed { host, message, .. } = decode_error(&encode_error(&error)).unwrap()
        else {
            panic!("another error");
        };
        assert_eq!(host, "a [31mb");
        assert!(message.len() <= 1 << 16 && message.chars().all(|letter| letter == 'ä'));
    }
}
