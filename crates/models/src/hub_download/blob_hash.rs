//! Hashes by which the hub identifies files: SHA-256 of the bytes for large files, git's SHA-1 of a blob for others.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use sha1::Sha1;
use sha2::{Digest, Sha256};

/// Expected hash from the server, in lower-case hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum BlobHash {
    Sha256(String),
    Git(String),
}

impl BlobHash {
    pub fn digits(&self) -> &str {
        let (BlobHash::Sha256(digits) | BlobHash::Git(digits)) = self;
        digits
    }

    pub fn kind(&self) -> &'static str {
        match self {
            BlobHash::Sha256(_) => "SHA-256",
            BlobHash::Git(_) => "git's SHA-1",
        }
    }

    /// Whether the digits are safe as a file name.
    pub fn is_plain(&self) -> bool {
        let length = match self {
            BlobHash::Sha256(_) => 64,
            BlobHash::Git(_) => 40,
        };
        let digits = self.digits();
        digits.len() == length && digits.bytes().all(|byte| byte.is_ascii_hexdigit())
    }

    /// The same kind of hash for a file of this many bytes.
    pub fn of_file(&self, path: &Path, bytes: u64) -> io::Result<String> {
        let file = File::open(path)?;
        match self {
            BlobHash::Sha256(_) => digest(Sha256::new(), file),
            BlobHash::Git(_) => {
                let header = format!("blob {bytes}\0");
                digest(Sha1::new().chain_update(header), file)
            }
        }
    }
}

fn digest(mut hash: impl Digest, mut file: File) -> io::Result<String> {
    let mut piece = vec![0; 1 << 20];
    loop {
        match file.read(&mut piece)? {
            0 => break,
            count => hash.update(&piece[..count]),
        }
    }
    let digits = hash.finalize();
    Ok(digits.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_those_of_sha256sum_and_git() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        std::fs::write(&path, "hello\n").unwrap();
        let [sha256, git] = [
            BlobHash::Sha256(String::new()),
            BlobHash::Git(String::new()),
        ];
        // sha256sum a; git hash-object a
        assert_eq!(
            sha256.of_file(&path, 6).unwrap(),
            "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03"
        );
        assert_eq!(
            git.of_file(&path, 6).unwrap(),
            "ce013625030ba8dba906f756967f9e9ca394464a"
        );
    }
}
