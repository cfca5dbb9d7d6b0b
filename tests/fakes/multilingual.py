"""Text in many scripts, with code, emoji and odd spaces, for tokenizer tests."""

MULTILINGUAL_LINES = (
    "Hello, world! It's a test; don't you think? I'LL be back, we've got 12345 things (3.14159) at 10:45pm...",
    "Les élèves mangent à l'école. Fußgängerübergänge, Straße. ¿Qué? ¡Olé, señor Ñandú!",
    "Привет, мир! Проверка. Ελληνικά γράμματα άέή. Türkçe İstanbul ığdır.",
    "你好，世界！这是一个测试。繁體中文字。日本語のテキストです。カタカナ。한국어 텍스트입니다.",
    "مرحبا بالعالم، هذا اختبار. שלום עולם. हिन्दी में एक वाक्य। ภาษาไทยไม่มีช่องว่าง தமிழ் ქართული",
    "😀😃 👩‍👩‍👧‍👦 🏳️‍🌈 👍🏽 ❤️ 🇩🇪 ★ ∑∫√≠ ½ ² ⅷ Ⅳ ① ٣٤٥ १२३",
    "e\u0301 a\u0308 \u0301 ﬁ Å ｆｕｌｌ １２３",
    "\tdef f(x):\n\t\treturn x**2  # comment\n\n\n    if a<=b && c!=d || !e {\r\n  print(i++);\r\n}\r\n   \n  x   \n",
    "<html><body class='x'>&amp; http://example.com/?q=1&r=%20</body> $x^2_{i+1}$ ```python\nprint('hi')\n```",
    "aaaaaaaaaaaaaaaaaaaa                          bbbbbbbb\t\t\t\t\n\n\n\n\n........!!!!!!!!----====____",
    "\u00a0nbsp\u3000ideographic\u200bzero\u200dwidth\ufeffbom \x00\x01\x7f \ud7ff \uffff \U0010ffff",
    "CamelCase snake_case SCREAMING_SNAKE iPhone3GS x86_64 v1.2.3-rc4 0xDEADBEEF 1e-10 1,000,000",
    "",
    " ",
    "\n",
)
