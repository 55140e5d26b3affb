//! Members of a tar: names and byte positions. Only headers are read.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use crate::error::DataError;

const BLOCK: u64 = 512;
/// Size limit of extension members, which hold names and sizes that do not fit into a header.
const MOST_NAME_BYTES: u64 = 1 << 16;

/// A file in a tar.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Member {
    pub(crate) name: String,
    pub(crate) offset: u64,
    pub(crate) num_bytes: u64,
}

/// Iterator over the files of a tar, in order.
#[derive(Debug)]
pub(crate) struct Members {
    path: PathBuf,
    file: File,
    file_bytes: u64,
    /// Position of the next header.
    at: u64,
}

/// Name and size that extension members give for the next file.
#[derive(Default)]
struct Announced {
    name: Option<String>,
    num_bytes: Option<u64>,
}

impl Members {
    pub(crate) fn open(path: &Path) -> Result<Members, DataError> {
        let (file, metadata) =
            holdall_files::open_regular(path).map_err(|cause| DataError::Io {
                path: path.to_owned(),
                action: "read it",
                cause,
            })?;
        let mut members = Members {
            path: path.to_owned(),
            file,
            file_bytes: metadata.len(),
            at: 0,
        };
        let mut start = Vec::new();
        members.bytes_into(0, members.file_bytes.min(BLOCK), &mut start)?;
        if start.starts_with(&[0x1f, 0x8b])
            || start.starts_with(b"BZh")
            || start.starts_with(b"\xfd7zXZ")
            || start.starts_with(b"\x28\xb5\x2f\xfd")
        {
            return Err(DataError::invalid(
                path.display(),
                "a tar that is not compressed",
                "a compressed one",
                "unpack it once (`gunzip`, `zstd -d`): pictures are compressed already, and members are read where they lie",
            ));
        }
        Ok(members)
    }

    /// The next file; `None` after the last.
    pub(crate) fn next(&mut self) -> Result<Option<Member>, DataError> {
        let mut announced = Announced::default();
        loop {
            if self.at + BLOCK > self.file_bytes {
                return Err(self.wrong("the end of the file before the zeros that end a tar"));
            }
            let mut header = Vec::new();
            self.bytes_into(self.at, BLOCK, &mut header)?;
            if header.iter().all(|byte| *byte == 0) {
                return Ok(None);
            }
            if !is_sound(&header) {
                return Err(self.wrong("a header that is none"));
            }
            let size =
                number(&header[124..136]).ok_or_else(|| self.wrong("a size that is no number"))?;
            let kind = header[156];
            let is_meta = matches!(kind, b'L' | b'K' | b'x' | b'g');
            let num_bytes = if is_meta {
                size
            } else {
                announced.num_bytes.unwrap_or(size)
            };
            let offset = self.at + BLOCK;
            let end = offset
                .checked_add(num_bytes)
                .filter(|end| *end <= self.file_bytes);
            let Some(end) = end else {
                let name = announced.name.unwrap_or_else(|| name_in(&header));
                return Err(self.wrong(&format!("the end of the file within `{name}`")));
            };
            self.at = end.div_ceil(BLOCK) * BLOCK;
            if is_meta {
                if num_bytes > MOST_NAME_BYTES {
                    return Err(self.wrong("a name of more than 64 KiB"));
                }
                let mut bytes = Vec::new();
                self.bytes_into(offset, num_bytes, &mut bytes)?;
                match kind {
                    b'L' => announced.name = Some(text(&bytes)),
                    b'x' => announced.read_pax(&bytes),
                    _ => {}
                }
                continue;
            }
            let name = announced.name.take().unwrap_or_else(|| name_in(&header));
            announced = Announced::default();
            // Folders, links and devices have no contents.
            if matches!(kind, b'0' | 0 | b'7') && !name.ends_with('/') {
                return Ok(Some(Member {
                    name,
                    offset,
                    num_bytes,
                }));
            }
        }
    }

    /// Reads a member's contents into `bytes`.
    pub(crate) fn read(&mut self, member: &Member, bytes: &mut Vec<u8>) -> Result<(), DataError> {
        bytes.clear();
        self.bytes_into(member.offset, member.num_bytes, bytes)
    }

    fn bytes_into(
        &mut self,
        at: u64,
        num_bytes: u64,
        bytes: &mut Vec<u8>,
    ) -> Result<(), DataError> {
        let mut read = || -> io::Result<()> {
            self.file.seek(SeekFrom::Start(at))?;
            bytes.reserve_exact(num_bytes as usize);
            (&mut self.file).take(num_bytes).read_to_end(bytes)?;
            if bytes.len() as u64 == num_bytes {
                Ok(())
            } else {
                Err(io::ErrorKind::UnexpectedEof.into())
            }
        };
        read().map_err(|cause| DataError::Io {
            path: self.path.clone(),
            action: "read it",
            cause,
        })
    }

    fn wrong(&self, found: &str) -> DataError {
        DataError::invalid(
            self.path.display(),
            "a whole tar",
            format_args!("{found}, at byte {}", self.at),
            "copy or download it again",
        )
    }
}

impl Announced {
    /// Parses pax records `LENGTH KEY=VALUE\n`.
    fn read_pax(&mut self, mut bytes: &[u8]) {
        while let Some(space) = bytes.iter().position(|byte| *byte == b' ') {
            let length = std::str::from_utf8(&bytes[..space]).ok();
            let length: Option<usize> = length.and_then(|length| length.parse().ok());
            let Some(length) = length.filter(|length| *length > space && *length <= bytes.len())
            else {
                return;
            };
            let record = String::from_utf8_lossy(&bytes[space + 1..length]);
            let record = record.strip_suffix('\n').unwrap_or(&record);
            match record.split_once('=') {
                Some(("path", name)) => self.name = Some(name.to_owned()),
                Some(("size", size)) => self.num_bytes = size.parse().ok(),
                _ => {}
            }
            bytes = &bytes[length..];
        }
    }
}

/// Checks a header's checksum, which counts its own field as blanks.
fn is_sound(header: &[u8]) -> bool {
    let sum: u64 = header
        .iter()
        .enumerate()
        .map(|(at, byte)| {
            if (148..156).contains(&at) {
                u64::from(b' ')
            } else {
                u64::from(*byte)
            }
        })
        .sum();
    number(&header[148..156]) == Some(sum)
}

/// Number of a header field: octal digits, or big-endian bytes after a high bit.
fn number(field: &[u8]) -> Option<u64> {
    if field[0] & 0x80 != 0 {
        let mut bytes = field.iter().enumerate();
        return bytes.try_fold(0_u64, |all, (at, byte)| {
            let byte = if at == 0 { byte & 0x7f } else { *byte };
            all.checked_mul(256)?.checked_add(u64::from(byte))
        });
    }
    let text = field.split(|byte| *byte == 0).next()?;
    let text = std::str::from_utf8(text).ok()?.trim();
    match text {
        "" => Some(0),
        text => u64::from_str_radix(text, 8).ok(),
    }
}

fn text(field: &[u8]) -> String {
    let text = field.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).into_owned()
}

fn name_in(header: &[u8]) -> String {
    let name = text(&header[..100]);
    let prefix = if header[257..].starts_with(b"ustar\0") {
        text(&header[345..500])
    } else {
        String::new()
    };
    match prefix.as_str() {
        "" => name,
        prefix => format!("{prefix}/{name}"),
    }
}

/// Header of a file in `ustar` format; `None` for a name that is too long.
pub(crate) fn header(name: &str, num_bytes: u64) -> Option<[u8; BLOCK as usize]> {
    let mut header = [0; BLOCK as usize];
    let mut put = |at: usize, text: &[u8]| header[at..at + text.len()].copy_from_slice(text);
    if name.is_empty() || name.len() > 100 || num_bytes >= 1 << 33 {
        return None;
    }
    put(0, name.as_bytes());
    put(100, b"0000644\0");
    put(108, b"0000000\0");
    put(116, b"0000000\0");
    put(124, format!("{num_bytes:011o}\0").as_bytes());
    put(136, b"00000000000\0");
    put(148, b"        ");
    put(156, b"0");
    put(257, b"ustar\x0000");
    let sum: u64 = header.iter().map(|byte| u64::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    Some(header)
}

/// Number of zeros that fill up a member's last block.
pub(crate) fn padding(num_bytes: u64) -> usize {
    (num_bytes.next_multiple_of(BLOCK) - num_bytes) as usize
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn tar(files: &[(&str, &[u8])]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (name, contents) in files {
            bytes.extend(header(name, contents.len() as u64).unwrap());
            bytes.extend(*contents);
            bytes.resize(bytes.len() + padding(contents.len() as u64), 0);
        }
        bytes.resize(bytes.len() + 1024, 0);
        bytes
    }

    fn members(bytes: &[u8]) -> Result<Vec<Member>, DataError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.tar");
        std::fs::write(&path, bytes).unwrap();
        let mut members = Members::open(&path)?;
        let mut all = Vec::new();
        while let Some(member) = members.next()? {
            all.push(member);
        }
        Ok(all)
    }

    #[test]
    fn members_are_where_their_bytes_are() {
        let bytes = tar(&[("a/1.jpg", b"one"), ("a/1.txt", b""), ("2.jpg", &[7; 600])]);
        let all = members(&bytes).unwrap();
        let names: Vec<&str> = all.iter().map(|member| member.name.as_str()).collect();
        assert_eq!(names, ["a/1.jpg", "a/1.txt", "2.jpg"]);
        for (member, contents) in all.iter().zip([&b"one"[..], b"", &[7; 600]]) {
            let start = member.offset as usize;
            assert_eq!(&bytes[start..start + member.num_bytes as usize], contents);
        }
    }

    #[test]
    fn long_names_of_gnu_and_pax_are_read() {
        let long = "folder/".repeat(30) + "1.jpg";
        let mut gnu = header("././@LongLink", long.len() as u64 + 1).unwrap();
        gnu[156] = b'L';
        resum(&mut gnu);
        let mut bytes = gnu.to_vec();
        bytes.extend(long.as_bytes());
        bytes.resize(1024, 0);
        bytes.extend(tar(&[("short", b"x")]));
        assert_eq!(members(&bytes).unwrap()[0].name, long);
        let record = format!("path={long}\n");
        let record = format!("{} {record}", record.len() + 4);
        let mut pax = header("pax", record.len() as u64).unwrap();
        pax[156] = b'x';
        resum(&mut pax);
        let mut bytes = pax.to_vec();
        bytes.extend(record.as_bytes());
        bytes.resize(1024, 0);
        bytes.extend(tar(&[("short", b"x"), ("next", b"y")]));
        let names: Vec<String> = members(&bytes)
            .unwrap()
            .into_iter()
            .map(|m| m.name)
            .collect();
        assert_eq!(names, [long.as_str(), "next"]);
    }

    fn resum(header: &mut [u8; 512]) {
        header[148..156].fill(b' ');
        let sum: u64 = header.iter().map(|byte| u64::from(*byte)).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    }

    #[test]
    fn what_is_no_tar_is_said() {
        let error = |bytes: &[u8]| members(bytes).unwrap_err().to_string();
        let bytes = tar(&[("1.jpg", &[1; 700])]);
        assert!(error(&bytes[..900]).contains("the end of the file within `1.jpg`"));
        assert!(error(&[7; 512]).contains("a header that is none, at byte 0"));
        assert!(error(b"\x1f\x8b packed").contains("a compressed one"));
        assert!(error(&bytes[..512 + 1024]).contains("before the zeros that end a tar"));
        assert!(error(b"").contains("before the zeros"));
        assert!(members(&[0; 1024]).unwrap().is_empty());
    }
}
