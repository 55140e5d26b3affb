//! Files of a model on the hub, and the choice of those to download.

use serde_json::Value;

use super::blob_hash::BlobHash;

/// Files to download beside the weights, if the model has them.
const WANTED: [&str; 10] = [
    "preprocessor_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "generation_config.json",
    "config.json",
];
const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// File list of a model's revision.
#[derive(Debug)]
pub(super) struct Listing {
    /// Name of the revision, as requested.
    pub revision: String,
    pub commit: String,
    files: Vec<RemoteFile>,
}

#[derive(Debug)]
pub(super) struct RemoteFile {
    pub name: String,
    pub size: Option<u64>,
    /// `None` where the server does not report it.
    pub hash: Option<BlobHash>,
}

impl RemoteFile {
    /// Name in the cache: the hash, like Hugging Face's tools.
    pub fn blob_name(&self) -> &str {
        self.hash
            .as_ref()
            .map_or(self.name.as_str(), BlobHash::digits)
    }

    fn parse(entry: &Value) -> Option<RemoteFile> {
        let lfs = &entry["lfs"];
        let text = |value: &Value| value.as_str().map(str::to_lowercase);
        let hash = text(&lfs["sha256"])
            .or_else(|| text(&lfs["oid"]))
            .map(BlobHash::Sha256)
            .or_else(|| text(&entry["blobId"]).map(BlobHash::Git));
        Some(RemoteFile {
            name: entry["rfilename"].as_str()?.to_owned(),
            size: lfs["size"].as_u64().or_else(|| entry["size"].as_u64()),
            hash: hash.filter(BlobHash::is_plain),
        })
    }
}

impl Listing {
    /// Parses the server's answer; the error is a message about what is wrong with it.
    pub fn parse(answer: &str, revision: &str) -> Result<Listing, String> {
        let answer: Value = serde_json::from_str(answer)
            .map_err(|cause| format!("expected a list of files as JSON: {cause}"))?;
        let commit = answer["sha"].as_str().unwrap_or_default();
        let is_commit = !commit.is_empty() && commit.bytes().all(|byte| byte.is_ascii_hexdigit());
        let (true, Some(files)) = (is_commit, answer["siblings"].as_array()) else {
            return Err("expected `sha` and `siblings`, found other JSON".to_owned());
        };
        Ok(Listing {
            revision: revision.to_owned(),
            commit: commit.to_owned(),
            files: files.iter().filter_map(RemoteFile::parse).collect(),
        })
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.files.iter().map(|file| file.name.as_str())
    }

    fn file(&self, name: &str) -> Option<&RemoteFile> {
        self.files.iter().find(|file| file.name == name)
    }

    /// Chooses weights, then other files, config.json last: a folder with config.json is complete. `None` without safetensors.
    pub fn choose(&self) -> Option<Vec<&RemoteFile>> {
        let mut chosen: Vec<&RemoteFile> = match self.file(SINGLE) {
            Some(single) => vec![single],
            None => {
                let index = self.file(INDEX)?;
                let shards = self.files.iter().filter(|file| is_shard(&file.name));
                shards.chain([index]).collect()
            }
        };
        chosen.extend(WANTED.iter().filter_map(|name| self.file(name)));
        Some(chosen)
    }
}

/// `model-00001-of-00003.safetensors`
fn is_shard(name: &str) -> bool {
    let numbers = name
        .strip_prefix("model-")
        .and_then(|rest| rest.strip_suffix(".safetensors"));
    let numbers = numbers.and_then(|numbers| numbers.split_once("-of-"));
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    numbers.is_some_and(|(one, all)| is_number(one) && is_number(all))
}

/// Number of the open pull request by this author whose title contains the word.
pub(super) fn pull_request(answer: &str, author: &str, word: &str) -> Option<u64> {
    let answer: Value = serde_json::from_str(answer).ok()?;
    let is_offer = |entry: &&Value| {
        entry["isPullRequest"] == true
            && entry["status"] == "open"
            && entry["author"]["name"] == author
            && entry["title"]
                .as_str()
                .is_some_and(|title| title.contains(word))
    };
    let offer = answer["discussions"].as_array()?.iter().find(is_offer)?;
    offer["num"].as_u64()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listing(names: &[&str]) -> Listing {
        let files: Vec<Value> = names
            .iter()
            .map(|name| serde_json::json!({"rfilename": name, "size": 3}))
            .collect();
        let answer = serde_json::json!({"sha": "abc123", "siblings": files});
        Listing::parse(&answer.to_string(), "main").unwrap()
    }

    fn chosen(names: &[&str]) -> Option<Vec<String>> {
        let listing = listing(names);
        let chosen = listing.choose()?;
        Some(chosen.iter().map(|file| file.name.clone()).collect())
    }

    #[test]
    fn safetensors_and_what_using_them_takes_are_chosen_and_nothing_else() {
        let all = [
            "README.md",
            "config.json",
            "pytorch_model.bin",
            "model.safetensors",
            "merges.txt",
            "onnx/model.onnx",
            "../model.safetensors",
        ];
        assert_eq!(
            chosen(&all).unwrap(),
            ["model.safetensors", "merges.txt", "config.json"]
        );
        let shards = [
            "config.json",
            "model.safetensors.index.json",
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
            "model-x-of-../y.safetensors",
        ];
        assert_eq!(chosen(&shards).unwrap().len(), 4);
        assert_eq!(chosen(&["config.json", "pytorch_model.bin"]), None);
    }

    #[test]
    fn hashes_that_are_none_are_not_names_of_files() {
        let entry = serde_json::json!({"rfilename": "a", "blobId": "../../x"});
        assert_eq!(RemoteFile::parse(&entry).unwrap().blob_name(), "a");
        let digits = "0".repeat(64);
        let entry = serde_json::json!({"rfilename": "a", "lfs": {"sha256": digits, "size": 7}});
        let file = RemoteFile::parse(&entry).unwrap();
        assert_eq!((file.blob_name(), file.size), (digits.as_str(), Some(7)));
    }

    #[test]
    fn only_the_converter_is_believed() {
        let offer = |author: &str, status: &str| {
            let entry = serde_json::json!({"num": 7, "isPullRequest": true, "status": status,
                "title": "Adding `safetensors` variant of this model", "author": {"name": author}});
            serde_json::json!({"discussions": [entry]}).to_string()
        };
        let ask = |answer: &str| pull_request(answer, "SFconvertbot", "safetensors");
        assert_eq!(ask(&offer("SFconvertbot", "open")), Some(7));
        assert_eq!(ask(&offer("SFconvertbot", "closed")), None);
        assert_eq!(ask(&offer("somebody", "open")), None);
        assert_eq!(ask("no JSON"), None);
    }
}
