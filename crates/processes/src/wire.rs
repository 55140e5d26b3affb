//! Encoding of numbers and texts in messages: little-endian, every length checked before it is used.

pub(crate) struct Reader<'a>(&'a [u8]);

/// Error: a message ended early, or holds an invalid text.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Malformed;

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader(bytes)
    }

    pub fn bytes(&mut self, count: usize) -> Result<&'a [u8], Malformed> {
        let (head, rest) = self.0.split_at_checked(count).ok_or(Malformed)?;
        self.0 = rest;
        Ok(head)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        self.bytes(N)?.try_into().map_err(|_| Malformed)
    }

    pub fn u8(&mut self) -> Result<u8, Malformed> {
        Ok(self.array::<1>()?[0])
    }

    pub fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_le_bytes)
    }

    /// Length-prefixed bytes.
    pub fn counted(&mut self) -> Result<&'a [u8], Malformed> {
        let count = self.u32()? as usize;
        self.bytes(count)
    }

    /// A text of at most `most` bytes without control characters except line ends, because it will be displayed.
    pub fn text(&mut self, most: usize) -> Result<String, Malformed> {
        let bytes = self.counted()?;
        let text = std::str::from_utf8(bytes).map_err(|_| Malformed)?;
        let is_shown = |letter: char| !letter.is_control() || letter == '\n';
        if bytes.len() > most || !text.chars().all(is_shown) {
            return Err(Malformed);
        }
        Ok(text.to_owned())
    }

    /// Fails if bytes are left.
    pub fn end(self) -> Result<(), Malformed> {
        if self.0.is_empty() {
            Ok(())
        } else {
            Err(Malformed)
        }
    }
}

pub(crate) fn put_u32(bytes: &mut Vec<u8>, number: usize) {
    let number = u32::try_from(number).expect("ranks and lengths of messages fit 32 bits");
    bytes.extend(number.to_le_bytes());
}

pub(crate) fn put_counted(bytes: &mut Vec<u8>, part: &[u8]) {
    put_u32(bytes, part.len());
    bytes.extend(part);
}

/// Writes a text that [`Reader::text`] accepts: control characters become spaces, and a long text is cut.
pub(crate) fn put_text(bytes: &mut Vec<u8>, text: &str, most: usize) {
    let mut shown: String = text
        .chars()
        .map(|letter| match letter {
            '\n' => '\n',
            letter if letter.is_control() => ' ',
            letter => letter,
        })
        .collect();
    while shown.len() > most {
        shown.pop();
    }
    put_counted(bytes, shown.as_bytes());
}
